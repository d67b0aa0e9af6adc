"""The kernel's ties between a process and its parent: parent-death signal and subreaper."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def become_subreaper() -> None:
    """Make this process adopt every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal `number` to this process when its parent ends for any reason.

    Call this first in the child. If the parent has died before the call, its pid is no longer
    `parent_pid`, and the signal is sent at once. Only Linux supports this: elsewhere the process
    lives on until its work is done.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)
