"""Checkpoints: their names, and which of them are complete."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from rundir.atomic import write_text
from rundir.paths import RunDir

MARKER = "COMPLETE"
_EVALUATION = "evaluation.json"


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint after `step` steps."""
    return f"step_{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the number of steps behind a checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix("step_"))


def remove_half_written(run: RunDir) -> None:
    """Remove what a process killed while saving has left behind; no other may be saving."""
    exports = (run.path.glob(f".{folder.name}.*") for folder in (run.model, run.adapter))
    for path in (*run.checkpoints.glob(".step_*"), *chain.from_iterable(exports)):
        shutil.rmtree(path, ignore_errors=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in `folder`, which have a marker, oldest first."""
    return sorted(path for path in folder.glob("step_*") if (path / MARKER).is_file())


def incomplete_checkpoints(folder: Path) -> list[Path]:
    """Return those without a marker: copied in part, or by something that does not write one."""
    return sorted(path for path in folder.glob("step_*") if not (path / MARKER).is_file())


def note_evaluation(checkpoint: Path, loss: float) -> None:
    """Store a checkpoint's loss on held-out data in its folder. Raises OSError."""
    write_text(checkpoint / _EVALUATION, json.dumps({"loss": loss}) + "\n")


def held_out_loss(checkpoint: Path) -> float | None:
    """Return a checkpoint's loss on held-out data; None if it was not evaluated, or diverged."""
    try:
        evaluation = json.loads((checkpoint / _EVALUATION).read_text(encoding="utf-8"))
        loss = float(evaluation["loss"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return loss if math.isfinite(loss) else None


def best_of(checkpoints: Iterable[Path]) -> Path | None:
    """Return the one with the lowest held-out loss, of equal ones the latest; None without any."""
    losses = ((held_out_loss(path), path) for path in checkpoints)
    ranked = [(loss, -step_of(path), path) for loss, path in losses if loss is not None]
    return min(ranked)[-1] if ranked else None


def best_checkpoint(folder: Path) -> Path | None:
    """Return the complete checkpoint with the lowest held-out loss; None if none was evaluated."""
    return best_of(complete_checkpoints(folder))


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, renaming it first: one that is half removed still has its marker."""
    gone = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    path.rename(gone / path.name)
    shutil.rmtree(gone)
