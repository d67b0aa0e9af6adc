"""Airlock for scripts: let ranks load their model one after the other, as memory allows.

    import airlock

    with airlock.gate():
        model = load_model()

Under `./start.sh my_train.py` ranks pass the gate in order, and continue together when all are out.
Under plain torchrun it does nothing; for the import to work there, use `PYTHONPATH=CLONE/api
torchrun … my_train.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

_gate: Callable[[], AbstractContextManager[None]] | None = None  # set by Airlock


@contextlib.contextmanager
def gate() -> Iterator[None]:
    """Run the block inside the gate; every rank of the node has to call it, as often as the others.

    The block must not contain a collective: the other ranks reach it later. Raises TimeoutError
    when the gate does not open within `launch.gate_timeout_s`.
    """
    with contextlib.nullcontext() if _gate is None else _gate():
        yield
