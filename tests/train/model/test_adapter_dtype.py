"""Adapters on layers in bfloat16 multiply in bfloat16; their weights and gradients are float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rundir.config import ModelConfig, RunConfig, TrainConfig
from tests.models import GPT2, LLAMA, NO_DROPOUT, QWEN3
from tests.train.kernels import Calls
from tests.train.trace.test_footprint import configured as traced_config
from train.batches.batch import collate
from train.model.build import add_method, compile_blocks, inference, merged, new_model
from train.model.loss import SummedLoss
from train.step.try_attention import random_samples
from train.trace.estimate import _described, footprint

CPU = torch.device("cpu")
IDS = torch.arange(5, 25)[None]
SHAPES = {"qwen3": QWEN3, "gpt2": GPT2 | NO_DROPOUT}
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "linear", "linear_backward"}


def dtypes_of_products(noted: Calls) -> list[torch.dtype]:
    """Return the dtypes of the matrices that were multiplied, but for columns with rows.

    The latter are how earlier versions of transformers compute rotary positions, in float32.
    """
    tensors = (
        [value for value in call.args if isinstance(value, torch.Tensor)]
        for call in noted.calls
        if call.name in PRODUCTS
    )
    return [value.dtype for given in tensors if given[0].shape[-1] > 1 for value in given]


def configured(shape: dict[str, Any], **train: Any) -> RunConfig:
    model = {name: train.pop(name) for name in ModelConfig.__dataclass_fields__ if name in train}
    return RunConfig(
        profile="test",
        architecture=shape,
        model=ModelConfig(**{"dtype": "bfloat16", **model}),
        train=TrainConfig(**{"method": "lora", "lora_rank": 4, **train}),
    )


def made(config: RunConfig) -> Any:
    model = add_method(new_model(_described(config), config, CPU), config.train)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


def step(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of some samples, and the gradients by name."""
    torch.manual_seed(2)  # of dropout
    loss = SummedLoss(model)(*collate(random_samples(model, 0, (24, 9))).arguments())
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return float(loss.detach()), found


def as_peft_makes_it(config: RunConfig) -> Any:
    """Return the same model with adapters as peft makes them, which multiply in float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.model.adapter_dtype.compute_in_dtype_of_layers", lambda *_, **__: 0)
        return made(config)


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"lora_rslora": True},
    "dora": {"lora_dora": True},
    "dropout": {"lora_dropout": 0.1},
    "dora with dropout": {"lora_dora": True, "lora_dropout": 0.1},
    "checkpointing": {"gradient_checkpointing": True},
    "qlora": {"method": "qlora"},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("qwen3", kind) for kind in KINDS), *(("gpt2", kind) for kind in ("lora", "dora", "qlora"))],
)
def test_every_product_is_of_bfloat16_and_adapters_stay_float32(name: str, kind: str) -> None:
    if kind == "qlora":
        pytest.importorskip("bitsandbytes")
    model = made(configured(SHAPES[name], **KINDS[kind]))
    with Calls() as noted:
        _, gradients = step(model)
    assert len(dtypes_of_products(noted)) > 100
    assert set(dtypes_of_products(noted)) == {torch.bfloat16}
    trained = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert set(trained.values()) == {torch.float32}
    assert {name: one.dtype for name, one in gradients.items()} == trained


def test_an_evaluation_and_an_answer_multiply_in_bfloat16_too() -> None:
    model = made(configured(LLAMA))
    with Calls() as noted, inference(model):
        model(input_ids=IDS)
        model.generate(input_ids=IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert set(dtypes_of_products(noted)) == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_gradients_are_those_of_float32_to_the_precision_of_bfloat16(kind: str) -> None:
    config = configured(QWEN3, **KINDS[kind])
    loss, gradients = step(made(config))
    with Calls() as noted:
        other_loss, others = step(as_peft_makes_it(config))
    assert torch.float32 in dtypes_of_products(noted)  # the comparison is with something else
    assert loss == pytest.approx(other_loss, rel=5e-3)
    assert gradients.keys() == others.keys()
    flat, exact = (
        torch.cat([one.flatten() for one in found.values()]) for found in (gradients, others)
    )
    assert 0 < (flat - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_in_float32_nothing_is_other_than_peft_makes_it(kind: str) -> None:
    if kind == "qlora":
        pytest.importorskip("bitsandbytes")
    config = configured(QWEN3, dtype="float32", **KINDS[kind])
    loss, gradients = step(made(config))
    expected, others = step(as_peft_makes_it(config))
    assert loss == expected
    assert all(torch.equal(gradients[name], others[name]) for name in others)


def test_what_is_recomputed_is_the_same_to_the_last_bit() -> None:
    (loss, gradients), (again, others) = (
        step(made(configured(QWEN3, lora_dropout=0.1, gradient_checkpointing=on)))
        for on in (False, True)
    )
    assert loss == again
    assert gradients
    assert all(torch.equal(gradients[name], others[name]) for name in others)


@pytest.mark.long
@pytest.mark.skipif(" " in torch.__file__, reason="torch cannot link in a path with a space")
def test_compiled_blocks_multiply_in_bfloat16_as_well() -> None:
    model = made(configured(QWEN3))
    loss, gradients = step(model)
    compile_blocks(model)
    compiled, others = step(model)
    assert compiled == pytest.approx(loss, rel=5e-3)
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() < 0.05 * gradient.norm(), name


def test_dora_changes_nothing_before_it_is_trained() -> None:
    """Norms rounded to bfloat16 would scale each output of a layer by up to 0.4 %."""
    config = configured(QWEN3, lora_dora=True)
    model = add_method(new_model(_described(config), config, CPU), config.train)
    base = new_model(_described(config), config, CPU)
    with inference(model), inference(base):
        assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)


def test_merged_adapters_are_in_an_ordinary_model() -> None:
    model = made(configured(QWEN3))
    with inference(model):
        before = model(input_ids=IDS).logits.float()
    plain = merged(model)
    assert not any("Low" in type(module).__name__ for module in plain.modules())
    with inference(plain):
        after = plain(input_ids=IDS).logits.float()
    assert (after - before).norm() < 0.05 * before.norm()


def kept_bytes(model: Any) -> int:
    """Return the bytes of all that a forward pass keeps for backward, weights left out."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(one: torch.Tensor) -> torch.Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        ids = torch.arange(5, 69)[None]
        logits = model.get_base_model().model(input_ids=ids, use_cache=False)[0]
    assert logits.requires_grad
    return sum(kept.values())


def test_no_input_is_kept_in_float32() -> None:
    """A copy in float32 of each layer's input was the larger part of what adapters kept."""
    config = configured(QWEN3)
    assert kept_bytes(made(config)) < 0.75 * kept_bytes(as_peft_makes_it(config))


def test_the_plan_sees_the_smaller_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    config = traced_config(QWEN3 | {"hidden_size": 128}, method="lora", dtype="bfloat16")
    low = footprint(config, "cuda").activations_bytes
    monkeypatch.setattr("train.model.adapter_dtype.compute_in_dtype_of_layers", lambda *_, **__: 0)
    assert low < 0.8 * footprint(config, "cuda").activations_bytes


def test_adapters_to_go_on_from_multiply_in_bfloat16_too(tmp_path: Any) -> None:
    from train.model.export import export_adapter

    first = configured(QWEN3)
    model = made(first)
    export_adapter(model, tmp_path / "adapter", base="", revision="")
    again = replace(first, train=replace(first.train, adapter=str(tmp_path / "adapter")))
    other = add_method(new_model(_described(again), again, CPU), again.train)
    with Calls() as noted:
        loss, _ = step(other)
    assert set(dtypes_of_products(noted)) == {torch.bfloat16}
    assert loss == step(model)[0]
