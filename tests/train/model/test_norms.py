"""RMS norms are computed by torch where that is their formula, and by the model elsewhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.models import LLAMA, QWEN3, SMALL
from tests.train.kernels import Calls
from tests.train.model.test_adapter_dtype import IDS, configured, made, step
from tests.train.trace.test_footprint import configured as traced_config
from train.model.norms import use_torch_norms
from train.trace.estimate import footprint

FULL = {"method": "full"}


def norms_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]


def by_transformers(model: Any) -> Any:
    """Return a copy whose norms are computed as transformers wrote them."""
    other = copy.deepcopy(model)
    for norm in norms_of(other):
        norm.__class__ = type(norm).__base__
    return other


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("shape", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_in_float32_losses_and_gradients_are_those_of_transformers(
    shape: dict[str, Any], method: str
) -> None:
    model = made(configured(shape, dtype="float32", method=method))
    theirs = by_transformers(model)
    assert {type(norm).forward for norm in norms_of(model)}.isdisjoint(
        type(norm).forward for norm in norms_of(theirs)
    )
    (loss, gradients), (their_loss, their_gradients) = step(model), step(theirs)
    assert loss == their_loss
    assert gradients.keys() == their_gradients.keys()
    assert all(torch.equal(gradients[name], their_gradients[name]) for name in gradients)


def test_in_bfloat16_they_are_nearer_to_the_truth() -> None:
    model = made(configured(QWEN3, **FULL))
    theirs = by_transformers(model)
    exact = copy.deepcopy(theirs).double()
    with torch.no_grad():
        truth = exact(input_ids=IDS).logits
        ours, others = ((one(input_ids=IDS).logits - truth).norm() for one in (model, theirs))
    assert ours < 1.02 * others


def test_another_formula_and_another_dtype_are_left_to_the_model() -> None:
    gemma = made(configured(SMALL | {"model_type": "gemma"}, **FULL))  # multiplies by 1 + weight
    assert {type(norm).__base__ for norm in norms_of(gemma)} == {nn.Module}
    norm = norms_of(made(configured(QWEN3, **FULL)))[0].float()
    x = torch.randn(2, norm.weight.numel(), dtype=torch.bfloat16)
    assert norm(x).dtype == torch.float32


def test_a_norm_without_a_weight_is_left_to_the_model_and_others_of_its_class_are_not() -> None:
    class SomeRMSNorm(nn.Module):
        def __init__(self, *, has_weight: bool) -> None:
            super().__init__()
            self.eps = 1e-6
            if has_weight:
                self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
            return (x * scale).to(x.dtype) * getattr(self, "weight", 1)

    both = nn.ModuleList([SomeRMSNorm(has_weight=True), SomeRMSNorm(has_weight=False)])
    use_torch_norms(both)
    assert [type(norm) is SomeRMSNorm for norm in both] == [False, True]


def test_names_of_weights_and_classes_stay_as_they_are() -> None:
    model = made(configured(QWEN3, **FULL))
    theirs = by_transformers(model)
    assert model.state_dict().keys() == theirs.state_dict().keys()
    assert str(model) == str(theirs)


def test_on_a_gpu_less_is_moved_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = traced_config(QWEN3 | {"hidden_size": 128}, method="lora", dtype="bfloat16")
    ours = footprint(config, "cuda")
    monkeypatch.setattr("train.model.build.use_torch_norms", lambda _: None)
    theirs = footprint(config, "cuda")
    assert ours.other_bytes < 0.75 * theirs.other_bytes
    assert ours.activations_bytes < 0.95 * theirs.activations_bytes
    assert ours.matrix_flops == theirs.matrix_flops


@pytest.mark.gpu
def test_a_real_gpu_has_one_kernel_each_way() -> None:
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(64, device="cuda", dtype=torch.bfloat16)
    with Calls() as noted:
        torch.autograd.grad(F.rms_norm(x, (64,), weight, 1e-6).sum(), x)
    norms = [call.name for call in noted.calls if "norm" in call.name]
    assert norms == ["_fused_rms_norm", "_fused_rms_norm_backward"]
