"""Answers of the tracer that are kept: a file each in the cache folder, named after its question.

Nothing here fails: what cannot be read is asked anew, what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from launch.plan.question import Question
from rundir.footprint import Footprint, read_footprints, write_footprints
from rundir.paths import cache_folder


def kept_answer(question: Question) -> Footprint | None:
    """The answer to this question, if it was given before."""
    try:
        (footprint,) = read_footprints(_file(question))
    except (OSError, ValueError, TypeError):  # none yet, torn, or of another version
        return None
    return footprint if _is_sound(footprint) else None


def keep(question: Question, footprint: Footprint) -> None:
    """Keep an answer; two that keep the same one write the same."""
    with contextlib.suppress(OSError):
        file = _file(question)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_footprints(file, [footprint])


def _file(question: Question) -> Path:
    return cache_folder() / "plans" / f"{question.key}.json"


def _is_sound(footprint: Footprint) -> bool:
    """Whether its parts are numbers that add up, as the contract has it."""
    parts = (
        footprint.weights_bytes,
        footprint.gradients_bytes,
        footprint.optimizer_bytes,
        footprint.ddp_bytes,
        footprint.activations_bytes,
        footprint.logits_bytes,
    )
    numbers = (*parts, footprint.num_parameters, footprint.num_trainable)
    return all(type(one) is int for one in numbers) and sum(parts) == footprint.peak_bytes
