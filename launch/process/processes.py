"""The processes of a run: which are ours, and how none of them is left behind."""

from __future__ import annotations

import contextlib
import os

import psutil

_ROUNDS = 10
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class OwnProcesses:
    """All that comes to live below this process, but not what did so before.

    A shell that `exec`s the start script leaves it its children: a sidecar, a `tee`. They, and
    what they start, are not ours to end.
    """

    def __init__(self) -> None:
        self._others = set(psutil.Process().children(recursive=True))

    def set_apart(self, pid: int) -> None:
        """Have a child count, with what it starts, as one of the others until `take_back`."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._others.add(psutil.Process(pid))

    def take_back(self, pid: int) -> None:
        """From now on the child `pid`, and what it has started, are to be ended as all are."""
        self._others = {process for process in self._others if process.pid != pid}

    def alive(self) -> list[psutil.Process]:
        """Every live process of ours, those included that lost their own parent; parents first.

        One pass over the machine's processes, however many of them are ours.
        """
        pids, found = {os.getpid()}, []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process not in self._others and process.ppid() in pids:
                    pids.add(process.pid)
                    found.append(process)
        return [process for process in found if is_alive(process)]

    def end(self, timeout_s: float = 5.0) -> None:
        """SIGKILL all of them, and wait until they are gone.

        Killing a parent can bring up children that were being forked just then, hence the rounds.
        multiprocessing's resource tracker ends by itself, when it has removed what the others left
        in /dev/shm: it has the first round's time for that.
        """
        for round_ in range(_ROUNDS):
            left = self.alive()
            if not left:
                return
            for process in left:
                if round_ == 0 and _is_resource_tracker(process):
                    continue
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=timeout_s)


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs still; one that has ended and waits to be collected does not."""
    try:
        return process.status() not in _GONE
    except psutil.NoSuchProcess:
        return False


def is_pid_alive(pid: int) -> bool:
    """Whether a process of that number runs: cheap, but it may be another than one meant."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
