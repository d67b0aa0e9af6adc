"""`python machine/processes/keeper.py RUN_DIR`: end the processes that a killed launcher leaves.

Agent, zygote and ranks die with their parents; what a rank has started itself (DataLoader workers,
compilers) need not. The launcher ends those, however a rank dies; this process does so if the
launcher itself dies. It waits on a pipe that only the launcher holds open, and identifies the
processes of the run by their environment.
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
    """Wait until the launcher has ended, then end every process of its run."""
    os.read(0, 1)
    mark = b"AIRLOCK_RUN_DIR=" + os.fsencode(sys.argv[1])
    for round_ in range(_ROUNDS):  # a process forked meanwhile is seen in the next round
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
    """Return whether a process has to clean up first, and then ends by itself.

    multiprocessing's resource tracker removes semaphores; a metrics tracker records the last ones.
    """
    words = _words(pid, "cmdline")
    return b"launch.track" in words or any(b"resource_tracker" in word for word in words)


def _pids() -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid()]


def _words(pid: int, what: str) -> list[bytes]:
    """Return a process's `environ` or `cmdline`; empty if it has ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    main()
