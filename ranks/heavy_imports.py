"""Heavy imports without the garbage collector: it would look through lasting objects, and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Collect no garbage within the block, and never look at what it leaves.

    torch and transformers make a million objects that last as long as the process; looking for
    garbage among them takes a third of the time of their import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
