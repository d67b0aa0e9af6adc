"""Checks of room for what a run writes: disks, for checkpoints and the model, and /dev/shm."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from launch.checks.context import Context, error, fine, warning
from launch.checks.sizes import model_size
from machine.mounts import filesystem_of
from machine.processes.runs import open_files
from rundir.config import RunConfig, Sources
from rundir.finding import Figure, Finding
from rundir.paths import runs_folder
from rundir.units import MIB

DISK = "disk"
_RUN_BYTES = 16 * MIB  # configuration, events and logs of a short run
_TEMPORARY_BYTES = MIB  # sockets and small files

SHARED_MEMORY = "shared memory"
_SHM = Path("/dev/shm")  # noqa: S108 - the kernel's, not a folder for temporary files
_SHM_LEAST_BYTES = MIB  # multiprocessing's locks and semaphores, a page each
# Size of a segment that NCCL creates for each connection of two ranks (nccl#290, #525,
# pytorch/ci-infra#490: "segment … size 9637888"); a ring of two channels and a tree make four per
# rank. An estimate: with NVLink the segments are smaller.
_NCCL_BYTES = 4 * 9_637_888
_STALE_BYTES = 64 * MIB  # less is not worth a warning
_STALE = re.compile(r"torch_(\d+)_.*|psm_.*|nccl-.*")
_MOST = 8  # files named in one command


def check_shared_memory(context: Context) -> list[Finding]:
    """Return an error if locks cannot be created, a warning if NCCL may find too little room."""
    if not _SHM.is_dir() or not os.access(_SHM, os.W_OK | os.X_OK):
        return [
            error(
                SHARED_MEMORY, f"{_SHM} cannot be written", f"sudo chmod 1777 {_SHM}; or mount it"
            )
        ]
    total, _, free = shutil.disk_usage(_SHM)
    stale = stale_files()
    stale_bytes = sum(_size(path) for path in stale)
    do = f"mount -o remount,size=1G {_SHM}; of a container: docker run --shm-size=1g"
    if stale:
        shown = " ".join(shlex.quote(str(path)) for path in stale[:_MOST])
        do = (
            f"rm {shown}   # of processes that are gone, {stale_bytes // MIB:,} MiB in all; or {do}"
        )
    room = f"{free // MIB:,} of {total // MIB:,} MiB of {_SHM} are free"
    num_ranks = context.placement.num_ranks
    needed = num_ranks * _NCCL_BYTES if context.placement.device == "cuda" and num_ranks > 1 else 0
    figures = {"free_mib": free // MIB, "stale_mib": stale_bytes // MIB}
    if free < _SHM_LEAST_BYTES:
        return [error(SHARED_MEMORY, f"{room}: processes cannot share even a lock", do, **figures)]
    if free < needed:
        what = f"NCCL may take {needed // MIB:,} for {num_ranks} ranks"
        return [warning(SHARED_MEMORY, f"{room}; {what}", do, **figures)]
    if stale_bytes >= _STALE_BYTES:
        text = f"{len(stale)} files in {_SHM} are of processes that are gone"
        return [
            warning(SHARED_MEMORY, f"{text}, {stale_bytes // MIB:,} MiB; {room}", do, **figures)
        ]
    return [fine(SHARED_MEMORY, room, **figures)]


def stale_files() -> list[Path]:
    """Return this user's files of torch, multiprocessing or NCCL that no process has open now.

    Files of another container, whose processes cannot be seen from here, look the same: hence
    nothing is removed.
    """
    candidates = [path for path in sorted(_SHM.iterdir()) if _is_ours(path)]
    used = _used_names() if candidates else set()
    return [path for path in candidates if path.name not in used and not _maker_lives(path)]


def _is_ours(path: Path) -> bool:
    try:
        return bool(_STALE.fullmatch(path.name)) and path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _maker_lives(path: Path) -> bool:
    """Return whether the process in torch's name for the file lives; it may have it closed now."""
    match = _STALE.fullmatch(path.name)
    return bool(match and match[1]) and Path(f"/proc/{match[1]}").exists()  # type: ignore[index]


def _used_names() -> set[str]:
    """Return the names of all files in /dev/shm that a process of this user has mapped or open."""
    used = set()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or process.stat().st_uid != os.getuid():
                continue
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if (at := line.find(f"{_SHM}/")) >= 0:
                    used.add(line[at + len(str(_SHM)) + 1 :].removesuffix(" (deleted)"))
            open_paths = map(Path, open_files(int(process.name)))
            used.update(path.name for path in open_paths if path.parent == _SHM)
    return used


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def check_disk(context: Context) -> list[Finding]:
    """Return a finding for each disk: an error if it cannot take what is surely written to it."""
    needed = _RUN_BYTES + checkpoints_bytes(context.config, context.sources)
    elsewhere = "AIRLOCK_RUNS_DIR=/elsewhere"
    runs = _judge_disk(
        runs_folder(),
        needed,
        _what(context.config, context.sources),
        f"free some, or {elsewhere}, or keep fewer checkpoints: --set train.keep_checkpoints=1",
    )
    temporary = _judge_disk(
        Path(tempfile.gettempdir()), _TEMPORARY_BYTES, "temporary files", "free some, or TMPDIR=/x"
    )
    return [runs, temporary]


def checkpoints_bytes(config: RunConfig, sources: Sources) -> int:
    """Return the most that checkpoints and exported model take at once, in bytes; 0 if unknown.

    A checkpoint is written completely before an old one is removed.
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


def _judge_disk(folder: Path, needed_bytes: int, what: str, do: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    disk = os.statvfs(there)
    free_bytes, kind = disk.f_bavail * disk.f_frsize, filesystem_of(there)
    figures: dict[str, Figure] = {
        "folder": str(folder),
        "free_mib": free_bytes // MIB,
        "kind": kind,
    }
    if disk.f_flag & os.ST_RDONLY:
        return error(DISK, f"{folder} is on a read-only filesystem ({kind})", do, **figures)
    if not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} may not be written by the user {os.getuid()}"
        return error(DISK, text, do, **figures)
    if disk.f_files and not disk.f_favail:
        text = f"{folder}: all {disk.f_files:,} inodes of its filesystem are in use"
        return error(DISK, text, do, **figures)
    text = f"{free_bytes // MIB:,} MiB are free for {folder} ({kind})"
    takes = f"{what} take"
    if free_bytes < needed_bytes:
        return error(DISK, f"{text}; {takes} {needed_bytes // MIB:,}", do, **figures)
    return fine(DISK, f"{text}; {takes} up to {needed_bytes // MIB:,}", **figures)
