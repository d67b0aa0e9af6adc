"""Temporary folders of one process; the next process removes those of one that was killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rundir.atomic import owned, remove_abandoned


def new_scratch(name: str, parent: Path | None = None) -> Path:
    """Return a new folder of this process for `airlock-NAME`, by default among temporary ones.

    Raises OSError when it cannot be created.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent, f"airlock-{name}")
    return Path(tempfile.mkdtemp(dir=parent, prefix=owned(f"airlock-{name}")))


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield a folder as from `new_scratch`, and remove it at the end."""
    folder = new_scratch(name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
