"""How checkpoints are named, and which of them are whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from rundir.paths import RunDir

MARKER = "COMPLETE"


def checkpoint_name(step: int) -> str:
    """The folder name of the checkpoint after `step` steps."""
    return f"step_{step:08d}"


def step_of(checkpoint: Path) -> int:
    """The steps behind a checkpoint, as its folder's name says."""
    return int(checkpoint.name.removeprefix("step_"))


def remove_half_written(run: RunDir) -> None:
    """Remove what a process that was killed while it saved has left; no other may be saving."""
    for path in (*run.checkpoints.glob(".step_*"), *run.path.glob(".model.*")):
        shutil.rmtree(path, ignore_errors=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Every whole checkpoint in `folder`, oldest first; one without its marker is passed over."""
    return sorted(path for path in folder.glob("step_*") if (path / MARKER).is_file())
