"""Every architecture: sharing rows, and computing the loss in chunks, change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING

from rundir.config import RunConfig, TrainConfig
from rundir.errors import ExitCode, UserError
from tests.models import GPT2, NO_DROPOUT, SMALL
from train.batches.batch import Batch, collate, collate_rows
from train.data.dataset import Sample, prompted
from train.model.build import add_method, new_model, vocabulary_of
from train.model.head import Head
from train.model.loss import SummedLoss
from train.step.selftest import Tried, check_causal, head_kind, tried_of
from train.step.try_packing import check_packing

NUM_TOKENS = SMALL["vocab_size"]
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": SMALL,
    "qwen3": SMALL | {"head_dim": 16},
    "llama": SMALL,
    "mistral": SMALL,
    "gemma": SMALL | {"head_dim": 16},
    "gpt2": GPT2 | NO_DROPOUT,
}


CONFIG = RunConfig(profile="test")


def made(kind: str, *, method: str = "full", **shape: Any) -> Any:
    attention: Any = "eager" if kind == "gemma2" else "sdpa"
    config = replace(CONFIG, model=replace(CONFIG.model, dtype="float32", attention=attention))
    described = CONFIG_MAPPING[kind](**(SHAPES.get(kind, SMALL) | shape))
    model = new_model(described, config, torch.device("cpu"))
    return add_method(model, TrainConfig(method=method))  # type: ignore[arg-type]


def samples() -> list[Sample]:
    draw = np.random.default_rng(0)
    return [
        prompted(draw.integers(0, NUM_TOKENS, length).astype(np.int32), length // 3)
        for length in (9, 30, 4, 17, 2, 21)
    ]


def found(model: Any, *batches: Batch, head: Head = "matrix") -> tuple[float, torch.Tensor]:
    """Return (loss, gradient) of batches together."""
    model.zero_grad()
    summed = SummedLoss(model, head=head)
    loss = torch.stack([summed(*batch.arguments()) for batch in batches]).sum()
    torch.autograd.backward(loss)
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return float(loss.detach()), torch.cat(gradients)


def assert_same(one: tuple[float, torch.Tensor], other: tuple[float, torch.Tensor]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    assert (one[1] - other[1]).norm() < 1e-5 * other[1].norm()


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_packed_is_unpacked_and_in_chunks_is_whole(
    kind: str, is_tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(kind, tie_word_embeddings=is_tied)
    some = samples()
    packed = collate_rows([[some[0], some[1], some[2]], [some[3], some[4]], [some[5]]])
    whole = found(model, collate(some), head="whole")
    assert whole[1].norm() > 0.1
    assert_same(found(model, collate(some)), whole)
    assert_same(found(model, packed, head="whole"), whole)
    monkeypatch.setattr("train.model.head._LOGITS_BYTES", 7 * NUM_TOKENS * 4)  # for seven tokens
    assert_same(found(model, packed), whole)
    check_packing(model)
    assert head_kind(model) == "matrix"


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_under_adapters_it_is_the_same(kind: str) -> None:
    model, some = made(kind, method="lora"), samples()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    whole = found(model, collate(some), head="whole")
    assert_same(found(model, collate_rows([some])), whole)
    assert len(whole[1]) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("gemma2", {"head_dim": 16, "final_logit_softcapping": 5.0}),
        ("cohere", {"logit_scale": 0.2}),
        ("granite", {"logits_scaling": 4.0, "tie_word_embeddings": False}),
        ("falcon_h1", {"lm_head_multiplier": 0.5, "mamba_d_ssm": 64, "mamba_n_heads": 4}),
        ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
    ],
)
def test_what_a_model_does_to_its_logits_is_done_in_chunks_too(
    kind: str, shape: Any, dtype: torch.dtype, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(kind, method=method, **shape).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # until a cap has an effect
    head = head_kind(model)
    assert head == ("matrix" if kind == "opt" else "own")
    whole = found(model, collate(samples()), head="whole")
    monkeypatch.setattr("train.model.head._LOGITS_BYTES", 4 * 7 * NUM_TOKENS * 4)  # of seven tokens
    chunked = found(model, collate(samples()), head=head)
    assert chunked[0] == pytest.approx(whole[0], rel=1e-6)
    away = {torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype]
    assert (chunked[1] - whole[1]).norm() < away * whole[1].norm()


def test_a_model_that_is_not_causal_is_refused() -> None:
    check_causal(made("qwen2"))
    with pytest.raises(UserError, match="not causal: later tokens change") as raised:
        check_causal(made("bert"))
    assert raised.value.code == ExitCode.PREFLIGHT


def test_a_model_that_takes_no_positions_is_refused() -> None:
    model = made("qwen2")
    inner = model.forward
    model.forward = lambda input_ids, use_cache: inner(input_ids=input_ids, use_cache=use_cache)
    with pytest.raises(UserError, match="cannot be given the positions") as raised:
        check_packing(model)
    assert raised.value.do == "--set data.packing=auto"


@pytest.mark.parametrize("is_training", [True, False])
def test_trying_out_leaves_the_model_as_it_was(is_training: bool) -> None:
    model = made("qwen2").train(is_training)
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    check_packing(model)
    check_causal(model)
    head_kind(model)
    assert torch.equal(torch.rand(2), expected)
    assert model.training == is_training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("error", "is_the_models"),
    [
        (ValueError("no such shape"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False),
        (MemoryError(), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
    ids=repr,
)
def test_what_the_models_code_raises_is_an_answer_and_the_machines_faults_are_not(
    error: Exception, is_the_models: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    model = made("qwen2")
    monkeypatch.setattr(model.model.layers[0].mlp, "forward", fail)
    config = replace(CONFIG, data=replace(CONFIG.data, packing=False))
    with pytest.raises(UserError if is_the_models else type(error)) as raised:
        tried_of(model, config)
    if isinstance(raised.value, UserError):
        assert "fails on a few tokens: ValueError: no such shape" in str(raised.value)
        assert raised.value.code == ExitCode.PREFLIGHT


def test_a_trial_is_no_longer_than_the_model_takes_and_asks_for_no_token_it_cannot_answer() -> None:
    assert tried_of(made("gpt2", n_positions=16), CONFIG) == Tried()
    model = made("qwen2")
    model.set_input_embeddings(nn.Embedding(NUM_TOKENS + 1, SMALL["hidden_size"]))  # like Moshi's
    assert vocabulary_of(model) == NUM_TOKENS
    assert tried_of(model, CONFIG).head == "matrix"
