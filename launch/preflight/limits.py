"""What the kernel lets a user have: open files, and processes with their threads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch.cgroups import own_groups
from launch.cores import usable_cores
from launch.mounts import PROC
from launch.preflight.ground import Ground, error, fine, warning
from rundir.finding import Finding

NAME = "limits"
_FILES = 4096  # of one process: a socket to every other rank, NCCL's, the shards of a model
_MOST_FILES = 65_536  # as far as it is raised: some programs close every number up to the limit
# Threads of a rank besides those that compute: autograd, DDP, gloo, NCCL with its watchdogs, CUDA.
# On CPU a rank of the tiny profile has 8 (launch/address_space.py); with CUDA it is a guess.
_THREADS_LEAST, _THREADS_CUDA = 8, 48
_OF_LAUNCHER = 32  # agent, zygote and their threads, the ends of which overlap


def check(ground: Ground) -> list[Finding]:
    """Raise what may be raised, for this process and all it starts, and say what is too low."""
    num_ranks = ground.placement.num_ranks
    threads = ground.config.launch.threads_per_rank or usable_cores().number // num_ranks or 1
    least = num_ranks * (threads + _THREADS_LEAST) + _OF_LAUNCHER
    on_gpu = _THREADS_CUDA if ground.placement.device == "cuda" else 0
    need = least + num_ranks * on_gpu
    _raise(resource.RLIMIT_NPROC, need)
    return [_open_files(), *(_judge(room, least, need, num_ranks) for room in rooms())]


def _open_files() -> Finding:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now = _raise(resource.RLIMIT_NOFILE, _FILES, most=_MOST_FILES)
    if now < _FILES:
        return warning(
            NAME,
            f"a process may open {now:,} files, and the limit cannot be raised; a rank may "
            f"need {_FILES:,}",
            f"ulimit -Hn {_FILES} as root, or docker run --ulimit nofile=65536",
            open_files=now,
        )
    raised = f" (raised from {before:,})" if now != before else ""
    return fine(NAME, f"a process may open {now:,} files{raised}", open_files=now, hard=hard)


def _raise(which: int, needed: int, most: int | None = None) -> int:
    """Raise a soft limit below `needed` as far as the hard one, or `most`; returns what it is."""
    soft, hard = resource.getrlimit(which)
    if soft != resource.RLIM_INFINITY and soft < needed and soft != hard:
        limits = [one for one in (hard, most) if one not in (None, resource.RLIM_INFINITY)]
        soft = min(limits, default=resource.RLIM_INFINITY)
        resource.setrlimit(which, (soft, hard))
    return soft


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A bound on the number of threads, and how many there are already."""

    what: str
    limit: int
    used: int
    do: str


def rooms(proc: Path = PROC) -> Iterator[Room]:
    """Every bound on the threads that this process and its children can start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is let through
        yield Room(
            what="the limit on processes of this user (RLIMIT_NPROC)",
            limit=soft,
            used=_threads_of_user(),
            do="ulimit -u 65536, or /etc/security/limits.conf",
        )
    for folder, _ in own_groups("pids", proc):
        if not (folder / "pids.max").exists():
            continue
        limit = (folder / "pids.max").read_text(encoding="ascii").strip()
        if limit != "max":
            yield Room(
                what=f"the cgroup {folder}",
                limit=int(limit),
                used=int((folder / "pids.current").read_text(encoding="ascii")),
                do="docker run --pids-limit=-1, or raise its pids.max (systemd: TasksMax)",
            )


def _judge(room: Room, least: int, need: int, num_ranks: int) -> Finding:
    left = room.limit - room.used
    text = f"{room.what} leaves {max(0, left):,} of {room.limit:,} threads"
    wants = f"{num_ranks} ranks start at least {least:,}"
    figures = {"threads_left": left, "threads_least": least, "threads_needed": need}
    if left < least:
        return error(NAME, f"{text}; {wants}", room.do, **figures)
    if left < need:
        return warning(NAME, f"{text}; {wants}, and likely {need:,}", room.do, **figures)
    return fine(NAME, text, **figures)


def _threads_of_user() -> int:
    """Threads of all processes of this user, as RLIMIT_NPROC counts them."""
    uid, total = os.getuid(), 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == uid:
                total += len(os.listdir(process / "task"))  # noqa: PTH208 - only their number counts
        except OSError:
            continue
    return total
