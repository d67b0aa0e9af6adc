"""Keeping hold of processes: children that die with their parent, and none left behind."""

from __future__ import annotations

import ctypes
import os
import signal

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def become_subreaper() -> None:
    """Make this process the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends.

    Call it first thing in the child. The parent may have died before the call: then its pid is no
    longer `parent_pid` and this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def descendants() -> list[psutil.Process]:
    """Every process below this one, those that became ours as their subreaper included."""
    below: list[psutil.Process] = psutil.Process().children(recursive=True)
    return below


def end_descendants(timeout_s: float = 5.0) -> int:
    """SIGKILL and reap every process below this one; returns how many there were.

    Killing a parent can bring up children that were being forked just then, hence the rounds.
    """
    num_ended = 0
    for _ in range(10):
        left = [process for process in descendants() if process.status() != psutil.STATUS_ZOMBIE]
        if not left:
            break
        num_ended += len(left)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=timeout_s)
    reap_zombies()
    return num_ended


def reap_zombies() -> None:
    """Collect children that have ended, so that none stays as a zombie."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
