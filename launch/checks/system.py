"""Checks of what the kernel gives a user: open files, processes, localhost, a correct clock.

Ranks find each other through localhost; names of runs, the order of logs, and certificates depend
on the clock.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch.checks.context import Context, error, fine, warning
from machine.cgroups import own_groups
from machine.cores.cores import usable_cores
from machine.mounts import PROC
from machine.processes.runs import status_of
from rundir.finding import Finding
from rundir.paths import ROOT, RunDir, runs_folder

CLOCK = "clock"
_BORN = 1_767_225_600  # 2026-01-01: this program was written later
_FILES_MARGIN_S = 3600.0  # allowed error of a file server's clock
_RUNS_MARGIN_S = 60.0
_SET_CLOCK = "sudo timedatectl set-ntp true, or `sudo date -s …`"

LOCALHOST = "localhost"
_TIMEOUT_S = 1.0


def check_localhost(_context: Context | None = None) -> list[Finding]:
    """Return an error if the name does not resolve, or no connection to it can be made."""
    try:
        addresses = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    except OSError as seen:
        do = "a line `127.0.0.1 localhost` in /etc/hosts"
        return [error(LOCALHOST, f"the name localhost does not resolve here: {seen}", do)]
    refused = ""
    for family, _, _, _, address in addresses:
        try:
            _connect(family, (address[0], 0))
        except OSError as seen:
            refused = f"no connection to {address[0]} can be made: {seen}"
        else:
            return [fine(LOCALHOST, f"{address[0]} answers")]
    return [error(LOCALHOST, refused, "ip link set lo up; and see `ulimit -n`, the firewall")]


def _connect(family: int, address: tuple[object, int]) -> None:
    """Listen on a free port of `address`, and connect to it. Raises OSError."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen(1)
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(server.getsockname())


LIMITS = "limits"
_FILES = 4096  # per process: a socket to every other rank, NCCL's, the shards of a model
_MOST_FILES = 65_536  # raised no further: some programs close every descriptor up to the limit
# Threads of a rank besides those that compute: autograd, DDP, gloo, NCCL with its watchdogs, CUDA.
# On CPU a rank of the tiny profile has 8 (machine/memory/address_space.py); for CUDA it is a guess.
_THREADS_LEAST, _THREADS_CUDA = 8, 48
_OF_LAUNCHER = 32  # agent, zygote and their threads, which may overlap as they end


def check_limits(context: Context) -> list[Finding]:
    """Raise limits as far as allowed, for this process and its children; report those too low."""
    num_ranks = context.placement.num_ranks
    threads = context.config.launch.threads_per_rank or usable_cores().number // num_ranks or 1
    least = num_ranks * (threads + _THREADS_LEAST) + _OF_LAUNCHER
    on_gpu = _THREADS_CUDA if context.placement.device == "cuda" else 0
    need = least + num_ranks * on_gpu
    _raise(resource.RLIMIT_NPROC, need)
    return [_open_files(), *(_judge(room, least, need, num_ranks) for room in rooms())]


def _open_files() -> Finding:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now = _raise(resource.RLIMIT_NOFILE, _FILES, most=_MOST_FILES)
    if now < _FILES:
        return warning(
            LIMITS,
            f"a process may open {now:,} files, and the limit cannot be raised; a rank may "
            f"need {_FILES:,}",
            f"ulimit -Hn {_FILES} as root, or docker run --ulimit nofile=65536",
            open_files=now,
        )
    raised = f" (raised from {before:,})" if now != before else ""
    return fine(LIMITS, f"a process may open {now:,} files{raised}", open_files=now, hard=hard)


def _raise(which: int, needed: int, most: int | None = None) -> int:
    """Raise a soft limit below `needed` as far as the hard one, or `most`; return the limit."""
    soft, hard = resource.getrlimit(which)
    if soft != resource.RLIM_INFINITY and soft < needed and soft != hard:
        limits = [limit for limit in (hard, most) if limit not in (None, resource.RLIM_INFINITY)]
        soft = min(limits, default=resource.RLIM_INFINITY)
        resource.setrlimit(which, (soft, hard))
    return soft


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A limit on the number of threads, and the number already in use."""

    what: str
    limit: int
    used: int
    do: str


def rooms(proc: Path = PROC) -> Iterator[Room]:
    """Yield every limit on the threads that this process and its children can start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
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
        return error(LIMITS, f"{text}; {wants}", room.do, **figures)
    if left < need:
        return warning(LIMITS, f"{text}; {wants}, and likely {need:,}", room.do, **figures)
    return fine(LIMITS, text, **figures)


def _threads_of_user() -> int:
    """Return the number of threads of this user's processes, as RLIMIT_NPROC counts them."""
    uid, total = os.getuid(), 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == uid:
                total += len(os.listdir(process / "task"))  # noqa: PTH208 - only their number counts
        except OSError:
            continue
    return total


def check_clock(_context: Context) -> list[Finding]:
    """Return a warning if the clock is behind something written earlier."""
    findings = list(_behind(time.time()))
    return findings or [fine(CLOCK, time.strftime("%Y-%m-%d %H:%M:%S %Z"))]


def _behind(now: float) -> Iterator[Finding]:
    newest = max((path.stat().st_mtime for path in (ROOT / "launch").rglob("*.py")), default=0.0)
    written = max(newest - _FILES_MARGIN_S, _BORN)
    if now < written:
        text = f"it says {_time_text(now)}, before this program was written ({_time_text(written)})"
        yield warning(
            CLOCK, f"{text}: certificates and the names of runs will be wrong", _SET_CLOCK
        )
        return
    latest = RunDir(runs_folder() / "latest")
    ahead_s = float(status_of(latest).get("updated_t", 0.0)) - now
    if ahead_s > _RUNS_MARGIN_S:
        text = f"it says {_time_text(now)}, {ahead_s:,.0f} s before the last word of the run"
        name = latest.path.resolve().name
        yield warning(
            CLOCK, f"{text} {name}: it was set back, or that machine's is ahead", _SET_CLOCK
        )


def _time_text(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
