"""Shared memory (/dev/shm): can it be used, is there room, and what of it is left over."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from pathlib import Path

from launch.memory import MIB
from launch.preflight.ground import Ground, error, fine, warning
from rundir.finding import Finding

NAME = "shared memory"
_SHM = Path("/dev/shm")  # noqa: S108 - the kernel's, not a folder for temporary files
_LEAST_BYTES = MIB  # multiprocessing's locks and semaphores, a page each
# What NCCL makes for each connection of two ranks (nccl#290, #525, pytorch/ci-infra#490: "segment …
# size 9637888"); a ring of two channels and a tree beside it are four a rank. An estimate: with
# NVLink it makes smaller ones.
_NCCL_BYTES = 4 * 9_637_888
_STALE_BYTES = 64 * MIB  # less is not worth a word
_STALE = re.compile(r"torch_(\d+)_.*|psm_.*|nccl-.*")
_MOST = 8  # files named in one command


def check(ground: Ground) -> list[Finding]:
    """Errors where locks cannot be made, a warning where NCCL may find too little room."""
    if not _SHM.is_dir() or not os.access(_SHM, os.W_OK | os.X_OK):
        return [error(NAME, f"{_SHM} cannot be written", f"sudo chmod 1777 {_SHM}; or mount it")]
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
    num_ranks = ground.placement.num_ranks
    needed = num_ranks * _NCCL_BYTES if ground.placement.device == "cuda" and num_ranks > 1 else 0
    figures = {"free_mib": free // MIB, "stale_mib": stale_bytes // MIB}
    if free < _LEAST_BYTES:
        return [error(NAME, f"{room}: processes cannot share even a lock", do, **figures)]
    if free < needed:
        what = f"NCCL may take {needed // MIB:,} for {num_ranks} ranks"
        return [warning(NAME, f"{room}; {what}", do, **figures)]
    if stale_bytes >= _STALE_BYTES:
        text = f"{len(stale)} files in {_SHM} are of processes that are gone"
        return [warning(NAME, f"{text}, {stale_bytes // MIB:,} MiB; {room}", do, **figures)]
    return [fine(NAME, room, **figures)]


def stale_files() -> list[Path]:
    """Files that torch, multiprocessing or NCCL made for this user, and that no process has now.

    Those of another container, whose processes cannot be seen from here, look the same: hence
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
    """Whether torch's name for it is that of a live process, which may have it closed just now."""
    found = _STALE.fullmatch(path.name)
    return bool(found and found[1]) and Path(f"/proc/{found[1]}").exists()  # type: ignore[index]


def _used_names() -> set[str]:
    """Names of all files in /dev/shm that a process of this user has mapped or open."""
    found = set()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or process.stat().st_uid != os.getuid():
                continue
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if (at := line.find(f"{_SHM}/")) >= 0:
                    found.add(line[at + len(str(_SHM)) + 1 :].removesuffix(" (deleted)"))
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = Path(os.readlink(link))  # noqa: PTH115 - not every one is a path
                    if target.parent == _SHM:
                        found.add(target.name)
    return found


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0
