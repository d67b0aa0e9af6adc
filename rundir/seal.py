"""Seals of cached folders, which list their files and sizes to tell whether they are complete.

Caches are purged file by file, by tools and by people; a damaged one is made again, not used.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

_SEAL = ".seal.json"


def seal(folder: Path) -> None:
    """Record what `folder` holds now. Raises OSError."""
    (folder / _SEAL).write_text(json.dumps(_sizes(folder)), encoding="utf-8")


def is_sealed(folder: Path) -> bool:
    """Return whether `folder` holds exactly the files, with the sizes, that it was sealed with."""
    try:
        sealed = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(sealed == _sizes(folder))


def use_sealed(folder: Path) -> bool:
    """Return what `is_sealed` does, and note by the folder's time that it is used.

    The note comes first: whoever removes what nobody uses then sees it, or this sees it gone.
    """
    with contextlib.suppress(OSError):  # not there yet, or another user's
        os.utime(folder)
    return is_sealed(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != _SEAL}
