"""LoRA's products are added as they are computed, and are those that peft has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft.tuners import lora

from tests.train.kernels import Calls
from tests.train.model.test_adapter_dtype import IDS, SHAPES, configured, made, step
from train.model.adapter_dtype import LowLinear
from train.model.one_product import OneProductLinear

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"lora_rslora": True},
    "dropout": {"lora_dropout": 0.1},
    "recomputed": {"gradient_checkpointing": True},
}


def as_peft_computes(model: Any) -> Any:
    """Return a copy in which peft's own layers do their products one after the other."""
    other = copy.deepcopy(model)
    layers: list[Any] = [module for module in other.modules() if type(module) is OneProductLinear]
    assert layers
    for layer in layers:
        layer.__class__ = lora.Linear
    return other


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_losses_and_gradients_are_those_of_peft(name: str, option: str) -> None:
    model = made(configured(SHAPES[name], dtype="float32", **OPTIONS[option]))
    expected_loss, expected = step(as_peft_computes(model))
    loss, gradients = step(model)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert gradients.keys() == expected.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[parameter], rtol=1e-4, atol=1e-6)


def test_in_bfloat16_it_is_rounded_once_and_so_nearer_to_the_truth() -> None:
    model = made(configured(SHAPES["qwen3"]))
    exact = as_peft_computes(model).double()
    for module in exact.modules():
        if isinstance(module, LowLinear):
            module.dtype = torch.float64
    with torch.no_grad():
        truth = exact(input_ids=IDS).logits
        ours, theirs = (
            (computed(input_ids=IDS).logits - truth).norm()
            for computed in (model, as_peft_computes(model))
        )
    assert ours < 1.02 * theirs


@pytest.mark.parametrize("name", SHAPES)
def test_output_and_gradient_are_each_written_by_two_products_and_nothing_else(name: str) -> None:
    model = made(configured(SHAPES[name]))
    kernels = []
    for made_so, kind in ((model, OneProductLinear), (as_peft_computes(model), lora.Linear)):
        layer: Any = next(module for module in made_so.modules() if type(module) is kind)
        x = torch.randn(2, 7, layer.in_features, dtype=torch.bfloat16, requires_grad=True)
        ones = torch.ones(2, 7, layer.out_features, dtype=torch.bfloat16)
        with Calls() as noted:
            torch.autograd.grad(layer(x), x, ones)
        large = (14 * layer.out_features, 14 * layer.in_features)
        results = [(call.name, call.result) for call in noted.calls if not call.is_view]
        kernels.append([name for name, result in results if result.numel() in large])
    product = "mm" if name == "qwen3" else "addmm"  # with a bias
    assert kernels[0] == [product, "addmm_", "mm", "addmm_"]
    assert kernels[1] == [product, "mm", "mul", "add", "mul", "mm", "mm", "add"]


def test_what_is_no_plain_adapter_is_left_to_peft() -> None:
    model = made(configured(SHAPES["qwen3"], dtype="float32"))
    theirs = as_peft_computes(model)
    for both in (model, theirs):
        both.add_adapter("second", both.peft_config["default"])
    with torch.no_grad():
        for prepare in (
            lambda peft: peft.base_model.set_adapter(["default", "second"]),
            lambda peft: peft.base_model.disable_adapter_layers(),
            lambda peft: (peft.base_model.enable_adapter_layers(), peft.merge_adapter()),
        ):
            for both in (model, theirs):
                prepare(both)
            assert torch.equal(model(input_ids=IDS).logits, theirs(input_ids=IDS).logits)
