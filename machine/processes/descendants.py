"""The launcher's own descendant processes, and how it ends all of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from machine.processes.activity import letter_of

_PROC = Path("/proc/self/stat")
_ROUNDS = 10
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class OwnProcesses:
    """All descendants of this process, except those older than this object.

    A shell that `exec`s the start script leaves its children to it: a sidecar, a `tee`. They, and
    what they start, must not be ended.
    """

    def __init__(self) -> None:
        self._others = set(psutil.Process().children(recursive=True))

    def set_apart(self, pid: int) -> None:
        """Exclude a child and its descendants until `take_back`."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._others.add(psutil.Process(pid))

    def take_back(self, pid: int) -> None:
        """Include the child `pid` and its descendants again."""
        self._others = {process for process in self._others if process.pid != pid}

    def alive(self) -> list[psutil.Process]:
        """Return every live process of ours, orphans included, parents first.

        Takes one pass over the machine's processes, however many of them are ours.
        """
        pids, processes = {os.getpid()}, []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process not in self._others and process.ppid() in pids:
                    pids.add(process.pid)
                    processes.append(process)
        return [process for process in processes if is_alive(process)]

    def end(self, timeout_s: float = 5.0) -> None:
        """Send SIGKILL to all of them, and wait until they are gone.

        A parent may fork a child just before it is killed, hence the rounds. The resource tracker
        of multiprocessing ends by itself once it has removed what the others left in /dev/shm: it
        is spared in the first round for that.
        """
        for round_ in range(_ROUNDS):
            left = self.alive()
            if not left:
                return
            for process in left:
                if round_ == 0 and _is_resource_tracker(process):
                    continue
                kill(process)
            psutil.wait_procs(left, timeout=timeout_s)


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def kill(process: psutil.Process) -> None:
    """Send SIGKILL to a process, which may have ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is still running; a zombie is not."""
    try:
        return process.status() not in _GONE
    except psutil.NoSuchProcess:
        return False


def is_pid_alive(pid: int) -> bool:
    """Return whether a process with that pid runs: cheap, but the pid may have been reused."""
    if _PROC.exists():
        return letter_of(pid) not in ("", "Z", "X")
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
