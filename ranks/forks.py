"""A warning for every place that forks after CUDA was initialised, before it can do harm.

The child has a copy of the parent's CUDA state that it must not use: it fails with "Cannot
re-initialize CUDA in forked subprocess", or hangs. A hook cannot prevent the fork (Python ignores
the exceptions it raises), and a child that only computes on the CPU is harmless, so this only
warns.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_OURS = (__file__,)
_said: set[str] = set()
_watching: list[Callable[[str], None]] = []  # hooks cannot be unregistered


def watch_forks(say: Callable[[str], None]) -> None:
    """Call `say` with a line for each place in this process that forks with CUDA initialised."""
    if not _watching:
        os.register_at_fork(before=_before_fork)
    _watching[:] = [say]


def cuda_is_initialized() -> bool:
    """Return whether this process has a CUDA context, as far as torch knows."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _before_fork() -> None:
    if not _watching or not cuda_is_initialized():
        return
    where = _caller()
    if where not in _said:
        _said.add(where)
        _watching[0](
            f"FORK: {where} forks this process, which uses CUDA already: its child cannot. Start "
            'processes with multiprocessing.get_context("forkserver"), a DataLoader\'s with '
            'multiprocessing_context="forkserver"'
        )


def _caller() -> str:
    """Return the innermost line of the stack that is outside Python's own library."""
    library = str(Path(os.__file__).parent)
    frames = [frame for frame in traceback.extract_stack() if frame.filename not in _OURS]
    outside = [
        frame
        for frame in frames
        if not frame.filename.startswith(library) or "site-packages" in frame.filename
    ]
    frame = (outside or frames)[-1]
    return f"{frame.filename}:{frame.lineno} (in {frame.name}: {frame.line})"
