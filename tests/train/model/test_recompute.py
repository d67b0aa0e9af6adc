"""Recomputed blocks: the state of random numbers is kept for them where something is random."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models import GPT2, QWEN3
from tests.train.model.test_adapter_dtype import configured, made, step
from train.model.recompute import blocks_of, recomputed_blocks

RECOMPUTED = {"gradient_checkpointing": True}


@pytest.mark.parametrize("shape", [QWEN3, GPT2])
@pytest.mark.parametrize("asked", [False, 1, True, 9])
def test_the_first_blocks_are_recomputed_as_many_as_asked_for(
    shape: dict[str, Any], asked: bool | int
) -> None:
    loss, kept = step(made(configured(shape)))
    model = made(configured(shape, gradient_checkpointing=asked))
    blocks = blocks_of(model)
    num = {False: 0, 1: 1}.get(asked, len(blocks)) if asked is not True else len(blocks)
    assert recomputed_blocks(model) == blocks[:num]
    again, recomputed = step(model)
    assert again == loss
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


@pytest.mark.parametrize(
    ("shape", "options", "is_random"),
    [
        (QWEN3, {}, False),
        (QWEN3, {"lora_dropout": 0.1}, True),
        (QWEN3 | {"attention_dropout": 0.1}, {}, True),
        (GPT2, {}, True),
        (QWEN3, {"trust_remote_code": True}, True),
    ],
)
def test_random_numbers_are_drawn_again_only_where_there_are_any(
    shape: dict[str, Any],
    options: dict[str, Any],
    is_random: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: list[torch.Tensor] = []
    get_state = torch.get_rng_state

    def spied() -> torch.Tensor:
        states.append(get_state())
        return states[-1]

    _, kept = step(made(configured(shape, **options)))
    model = made(configured(shape, **options, **RECOMPUTED))
    monkeypatch.setattr(torch, "get_rng_state", spied)
    _, recomputed = step(model)
    assert bool(states) == is_random
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)
