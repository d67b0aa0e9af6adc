"""Standard input of a script's ranks: the launcher's goes to the first rank, the others get none.

torchrun hands it to all ranks, and each line reaches whichever reads first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

_STDIN = 0
_kept: int | None = None  # a descriptor of the launcher's, in the zygote and its forks


def keep_input() -> None:
    """Keep standard input of the zygote: multiprocessing closes it in each fork."""
    global _kept  # noqa: PLW0603 - a fork inherits memory, and this is where it looks
    with contextlib.suppress(OSError):  # it was closed when the run was started
        _kept = os.dup(_STDIN)


def give_input(local_rank: int) -> None:
    """Give this rank the launcher's standard input if it is the first one of its node."""
    global _kept  # noqa: PLW0603 - as above
    is_first = local_rank == 0
    if is_first and _kept is not None:
        os.dup2(_kept, _STDIN)
        _open_anew()
    elif not is_first:
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, _STDIN)
        if empty != _STDIN:
            os.close(empty)
    if _kept is not None:
        os.close(_kept)
        _kept = None


def _open_anew() -> None:
    """Open `sys.stdin` as Python does at its start; in a fork it reads /dev/null."""
    first: Any = sys.__stdin__
    encoding, errors = (first.encoding, first.errors) if first is not None else (None, None)
    stream = open(_STDIN, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stdin = sys.__stdin__ = stream  # type: ignore[misc]
