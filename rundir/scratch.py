"""Folders for the time of one process; of one that was killed the next one removes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rundir.atomic import owned, remove_abandoned


def new_scratch(name: str) -> Path:
    """A folder of this process's own where temporary files belong, for `airlock-NAME`.

    Raises OSError when none can be made.
    """
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent, f"airlock-{name}")
    return Path(tempfile.mkdtemp(dir=parent, prefix=owned(f"airlock-{name}")))


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """As `new_scratch`, removed at the end."""
    folder = new_scratch(name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
