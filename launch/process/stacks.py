"""Stacks of a process's threads on request, though C code holds the GIL: both sides of it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

# Not SIGUSR2, which does the same for people: a script may use that for something of its own.
ASKS = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 1) - 1
_GRACE_S = 1.5
_QUIET_S = 0.2  # after which a dump that has begun is taken for whole


def answer_in(path: Path) -> None:
    """From now on write the stacks of all threads of this process to `path` when asked to.

    Where that file cannot be made, or there are no real-time signals, nobody is answered.
    """
    if not hasattr(signal, "SIGRTMAX"):
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        faulthandler.register(ASKS, os.open(path, flags, 0o644), all_threads=True)


def ask(files: Mapping[int, Path], pids: Mapping[int, int]) -> dict[int, int]:
    """Ask each of `pids` (by rank) for its stacks, which it adds to its file in `files`.

    Returns where in the file of each one that has answered they begin; takes two seconds at most.
    """
    begins: dict[int, int] = {}
    for rank, pid in pids.items():
        with contextlib.suppress(OSError):
            if answers(pid, files[rank]):
                begins[rank] = files[rank].stat().st_size
                os.kill(pid, ASKS)
    deadline = time.monotonic() + _GRACE_S
    before: dict[int, int] = {}
    while begins and time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        sizes = _sizes(files, begins)
        if sizes == before and all(sizes[rank] > begin for rank, begin in begins.items()):
            break
        before = sizes
    sizes = _sizes(files, begins)
    return {rank: begin for rank, begin in begins.items() if sizes[rank] > begin}


def _sizes(files: Mapping[int, Path], ranks: Mapping[int, int]) -> dict[int, int]:
    sizes = dict.fromkeys(ranks, 0)
    for rank in ranks:
        with contextlib.suppress(OSError):
            sizes[rank] = files[rank].stat().st_size
    return sizes


def answers(pid: int, path: Path) -> bool:
    """Whether the process would write to `path`: one without a handler would end by being asked.

    One that has closed the file may have another one under its number. Raises OSError.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    if not int(caught.split()[1], 16) >> (ASKS - 1) & 1:
        return False
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.path.realpath(link) == os.path.realpath(path) for link in links)
