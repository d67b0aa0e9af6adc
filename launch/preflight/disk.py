"""The disks that a run writes to: room for its checkpoints and the trained model, and at all."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

from launch.memory import MIB
from launch.mounts import filesystem_of
from launch.preflight.ground import Ground, error, fine
from launch.preflight.sizes import model_size
from rundir.config import RunConfig, Sources
from rundir.finding import Figure, Finding
from rundir.paths import runs_folder

NAME = "disk"
_LEAST_BYTES = 16 * MIB  # configuration, events and logs of a short run
_TEMPORARY_BYTES = MIB  # sockets and small files


def check(ground: Ground) -> list[Finding]:
    """An error for a disk that cannot take what is surely written to it."""
    needed = _LEAST_BYTES + checkpoints_bytes(ground.config, ground.sources)
    elsewhere = "AIRLOCK_RUNS_DIR=/elsewhere"
    runs = _judge(
        runs_folder(),
        needed,
        _what(ground.config, ground.sources),
        f"free some, or {elsewhere}, or keep fewer checkpoints: --set train.keep_checkpoints=1",
    )
    temporary = _judge(
        Path(tempfile.gettempdir()), _TEMPORARY_BYTES, "temporary files", "free some, or TMPDIR=/x"
    )
    return [runs, temporary]


def checkpoints_bytes(config: RunConfig, sources: Sources) -> int:
    """What checkpoints and the exported model take at most at once; 0 where that is not known.

    A checkpoint is written whole before an old one is removed.
    """
    size = None if config.script is not None else model_size(config, sources)
    if size is None:
        return 0
    kept = _num_at_once(config)
    return kept * size.checkpoint_bytes(config) + size.exported_bytes(config)


def _num_at_once(config: RunConfig) -> int:
    train = config.train
    if train.checkpoint_every_steps == 0:
        return 1
    has_best = bool(config.data.eval_path) and train.eval_every_steps > 0
    most = train.keep_checkpoints + 1 + has_best
    if train.max_steps == 0:
        return most
    return min(most, math.ceil(train.max_steps / train.checkpoint_every_steps))


def _what(config: RunConfig, sources: Sources) -> str:
    if checkpoints_bytes(config, sources) == 0:
        return "a run's logs"
    return f"{_num_at_once(config)} checkpoints and the trained model"


def _judge(folder: Path, needed_bytes: int, what: str, do: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = os.statvfs(there)
    free_bytes, kind = found.f_bavail * found.f_frsize, filesystem_of(there)
    figures: dict[str, Figure] = {
        "folder": str(folder),
        "free_mib": free_bytes // MIB,
        "kind": kind,
    }
    if found.f_flag & os.ST_RDONLY:
        return error(NAME, f"{folder} is on a read-only filesystem ({kind})", do, **figures)
    if not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} may not be written by the user {os.getuid()}"
        return error(NAME, text, do, **figures)
    if found.f_files and not found.f_favail:
        text = f"{folder}: all {found.f_files:,} inodes of its filesystem are in use"
        return error(NAME, text, do, **figures)
    text = f"{free_bytes // MIB:,} MiB are free for {folder} ({kind})"
    takes = f"{what} take"
    if free_bytes < needed_bytes:
        return error(NAME, f"{text}; {takes} {needed_bytes // MIB:,}", do, **figures)
    return fine(NAME, f"{text}; {takes} up to {needed_bytes // MIB:,}", **figures)
