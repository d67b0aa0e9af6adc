"""Stack dumps of a process's threads on request, even while C code holds the GIL; both sides."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

# Not SIGUSR2, which does the same for users: a script may use that for its own purposes.
ASKS = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 1) - 1
_GRACE_S = 1.5
_QUIET_S = 0.2  # a dump that has not grown for so long counts as complete


def answer_in(path: Path) -> None:
    """Write the stacks of all threads of this process to `path` on request from now on.

    If the file cannot be created, or there are no real-time signals, requests are not answered.
    """
    if not hasattr(signal, "SIGRTMAX"):
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        faulthandler.register(ASKS, os.open(path, flags, 0o644), all_threads=True)


def ask(files: Mapping[int, Path], pids: Mapping[int, int]) -> dict[int, int]:
    """Ask each process of `pids`, by rank, to append its stacks to its file in `files`.

    Returns the offset in its file where the stacks begin, for each rank that has answered. Takes at
    most two seconds.
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
    """Return whether the process would write to `path`; the signal ends one without a handler.

    The file must still be open, as its descriptor may have been reused. Raises OSError.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    if not int(caught.split()[1], 16) >> (ASKS - 1) & 1:
        return False
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.path.realpath(link) == os.path.realpath(path) for link in links)
