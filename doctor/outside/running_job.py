"""The ranks of the job that a process belongs to, from the environment of running processes."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from rundir.errors import UserError
from rundir.paths import ROOT

_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_OVER = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_NO_RANK = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_SPAWNED = "multiprocessing.spawn"  # in the command of a process started by torch's or Python's
_ADDRESS_OPTIONS = (
    "rdzv-endpoint",
    "rdzv_endpoint",
    "master-addr",
    "master_addr",
    "main_process_ip",
)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """The processes of a training on this machine, by rank.

    `by_order` says that their environment has no rank, so that they are numbered as they were
    started. `missing` are the ranks that should run on this machine and do not. `address` is where
    the ranks meet, "" if that is not known.
    """

    ranks: dict[int, psutil.Process]
    world_size: int
    missing: tuple[int, ...] = ()
    address: str = ""
    by_order: bool = False

    @property
    def is_alone(self) -> bool:
        """True for a training of one process."""
        return self.world_size == 1 and len(self.ranks) == 1

    def who(self, rank: int) -> str:
        """Return "rank N", or "process PID" for the only process of a training."""
        return f"process {self.ranks[rank].pid}" if self.is_alone else f"rank {rank}"


def find_job(pid: int) -> RunningJob:
    """Return the job that `pid` is a rank, a worker or the launcher of. Raises UserError."""
    try:
        process = psutil.Process(pid)
        environ = process.environ()
        if process.status() == psutil.STATUS_ZOMBIE:
            raise psutil.ZombieProcess(pid)
        below = process.children(recursive=True)
    except psutil.ZombieProcess as error:
        what = f"process {pid} has ended, and its parent has not taken note of it"
        raise UserError(what, do="./airlock doctor LOG   # of what it has printed") from error
    except psutil.NoSuchProcess as error:
        what = f"there is no process {pid}"
        raise UserError(what, do="pgrep -af python   # shows the processes, with their pids") from (
            error
        )
    except psutil.AccessDenied as error:
        who = _asked(lambda: f"user {psutil.Process(pid).username()}", "another user")
        raise UserError(
            f"process {pid} is of {who}, and may not be looked at",
            do=f"cd {shlex.quote(str(ROOT))} && sudo {shlex.quote(sys.executable)} -P -m launch "
            f"doctor --pid {pid}",
        ) from error
    if _rank(environ) is not None:
        return _of_environment(environ, list(psutil.process_iter()))
    for child in below:
        if _rank(above := _asked(child.environ, dict[str, str]())) is not None and _is_python(
            child
        ):
            return _of_environment(above, below)
    return _without_ranks(process, below)


def _of_environment(environ: Mapping[str, str], among: Sequence[psutil.Process]) -> RunningJob:
    """Return the job whose environment is like `environ`."""
    ranks: dict[int, psutil.Process] = {}
    taken: dict[int, int] = {}  # rank by pid, of a rank's children as well
    for process in sorted(among, key=_started):
        own = _asked(process.environ, dict[str, str]())
        rank = _rank(own)
        if rank is None or any(own.get(name) != environ.get(name) for name in _SAME_JOB):
            continue
        if not _is_python(process) or _asked(process.status, psutil.STATUS_DEAD) in _OVER:
            continue
        taken[process.pid] = rank
        if taken.get(_asked(process.ppid, 0)) != rank:
            ranks.setdefault(rank, process)
    world_size = _number(environ, "WORLD_SIZE") or len(ranks)
    num_local = _number(environ, "LOCAL_WORLD_SIZE") or 0
    first = (_number(environ, "GROUP_RANK") or 0) * num_local
    expected = range(first, min(first + num_local, world_size))
    address = environ.get("MASTER_ADDR", "")
    port = environ.get("MASTER_PORT", "")
    return RunningJob(
        ranks=dict(sorted(ranks.items())),
        world_size=world_size,
        missing=tuple(rank for rank in expected if rank not in ranks),
        address=f"{address}:{port}" if port else address,
    )


def _without_ranks(process: psutil.Process, below: Sequence[psutil.Process]) -> RunningJob:
    """Return a job that keeps no rank in its environment: spawned ranks, or one process."""
    programs = [
        candidate
        for candidate in (process, *below)
        if _is_python(candidate) and not _has(candidate, _NO_RANK)
    ]
    if not programs:
        name = " ".join(_command(process))[:60] or "a kernel thread"
        raise UserError(
            f"process {process.pid} ({name}) is no Python program, and has none below it",
            do="pgrep -af python   # shows the processes, with their pids",
        )
    spawned = sorted(
        (candidate for candidate in programs if _has(candidate, (_SPAWNED,))), key=_started
    )
    if len(spawned) > 1 and process not in spawned:
        ranks = dict(enumerate(spawned))
        return RunningJob(ranks=ranks, world_size=len(ranks), by_order=True)
    last = programs[0]
    while len(started := _started_by(last, programs)) == 1:
        last = started[0]  # accelerate launch, a wrapper: what they start is meant
    return RunningJob(ranks={0: last}, world_size=1, address=_address_option(_command(last)))


def _started_by(parent: psutil.Process, among: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the children of a process without forks of it or its helper, as DataLoader workers."""
    children = (child for child in among if _asked(child.ppid, 0) == parent.pid)
    return [
        child
        for child in children
        if not _has(child, (_SPAWNED,)) and _command(child) != _command(parent)
    ]


def _address_option(command: Sequence[str]) -> str:
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in _ADDRESS_OPTIONS:
            return value or following
    return ""


def _rank(environ: Mapping[str, str]) -> int | None:
    return None if "WORLD_SIZE" not in environ else _number(environ, "RANK")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _asked(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return what the kernel says of a process; `otherwise` if it is gone, or not ours to ask."""
    try:
        return ask()
    except (psutil.Error, OSError, KeyError):
        return otherwise


def _command(process: psutil.Process) -> list[str]:
    return _asked(process.cmdline, [])


def _started(process: psutil.Process) -> tuple[float, int]:
    return _asked(process.create_time, 0.0), process.pid


def _has(process: psutil.Process, words: Sequence[str]) -> bool:
    text = " ".join(_command(process))
    return any(word in text for word in words)


def _is_python(process: psutil.Process) -> bool:
    """Return whether a process is an interpreter, or has one built in."""
    if "python" in Path(_asked(process.exe, "")).name.lower():
        return True
    with contextlib.suppress(OSError):
        return b"libpython" in Path(f"/proc/{process.pid}/maps").read_bytes()
    return False
