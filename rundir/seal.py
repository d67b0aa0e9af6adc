"""Cached folders that know whether they are still whole: a seal lists their files and sizes.

Caches are purged file by file, by tools and by people; what is damaged is made anew, not used.
"""

from __future__ import annotations

import json
from pathlib import Path

_SEAL = ".seal.json"


def seal(folder: Path) -> None:
    """Write down what `folder` holds now. Raises OSError."""
    (folder / _SEAL).write_text(json.dumps(_sizes(folder)), encoding="utf-8")


def is_sealed(folder: Path) -> bool:
    """Whether `folder` holds just the files, of just the sizes, that it was sealed with."""
    try:
        sealed = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(sealed == _sizes(folder))


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != _SEAL}
