"""A process and its parent, as the kernel keeps them: who dies with whom, who adopts orphans."""

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
    """Make this process the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send `number` to this process when its parent ends, however that ends.

    Call it first thing in the child. The parent may have died before the call: then its pid is no
    longer `parent_pid`, and this process gets the signal at once. Only Linux's kernel does that:
    elsewhere this process lives on until its work is done.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)
