"""Rows whose other samples are exchanged, and what that changes in the logits of a sample."""

from __future__ import annotations

from typing import Any

from train.batches.batch import collate_rows
from train.data.dataset import Sample
from train.step.try_attention import logits_of, random_samples

LENGTHS = (19, 2, 70, 7, 33)
CHANGED = (0, 2, 4)  # the neighbours; the others stay


def rows(model: Any) -> tuple[list[Sample], list[Sample]]:
    """Return a row of samples, and one with other neighbours of the same lengths."""
    mine, others = (random_samples(model, seed, LENGTHS) for seed in (0, 1))
    return mine, [others[at] if at in CHANGED else one for at, one in enumerate(mine)]


def difference(model: Any, num_rows: int = 1) -> float:
    """Return the largest difference that other neighbours make to the logits of a sample."""
    found = [
        logits_of(model, collate_rows([row] * num_rows))[-1].split(list(LENGTHS))  # type: ignore[no-untyped-call]
        for row in rows(model)
    ]
    kept = [at for at in range(len(LENGTHS)) if at not in CHANGED]
    return max(float((found[0][at] - found[1][at]).abs().max()) for at in kept)
