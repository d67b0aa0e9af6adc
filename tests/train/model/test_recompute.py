"""Recomputed blocks: the state of random numbers is kept for them where something is random."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models import GPT2, QWEN3
from tests.train.model.test_adapter_dtype import configured, made, step

RECOMPUTED = {"gradient_checkpointing": True}


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
