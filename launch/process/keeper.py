"""`python launch/process/keeper.py RUN_DIR`: end what a killed launcher leaves of a run.

Agent, zygote and ranks die with their parents; what a rank has started itself (workers of a
DataLoader, compilers) need not. The launcher ends those, however a rank dies; this process does it
when it is the launcher that dies. It waits at a pipe that only the launcher holds open, and knows
the processes of the run by their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_ROUNDS = 50
_PAUSE_S = 0.1


def main() -> None:
    """Wait until the launcher is gone, then end every process of its run."""
    os.read(0, 1)
    mark = b"AIRLOCK_RUN_DIR=" + os.fsencode(sys.argv[1])
    for round_ in range(_ROUNDS):  # one that was being forked is seen in the next round
        left = [pid for pid in _pids() if mark in _words(pid, "environ")]
        if not left:
            return
        for pid in left:
            if round_ < _ROUNDS // 2 and _ends_by_itself(pid):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _ends_by_itself(pid: int) -> bool:
    """Whether it is one that has to tidy up first.

    multiprocessing's own keeper of semaphores removes them; a tracker takes the last metrics.
    """
    words = _words(pid, "cmdline")
    return b"launch.track" in words or any(b"resource_tracker" in word for word in words)


def _pids() -> list[int]:
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in found if pid != os.getpid()]


def _words(pid: int, what: str) -> list[bytes]:
    """What the process was started with; empty for one that has ended or is someone else's."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    main()
