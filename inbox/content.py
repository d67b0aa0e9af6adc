"""The hash of what was dropped: the same content has the same, whatever it is called."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 1024 * 1024


class Interrupted(Exception):  # noqa: N818 - not an error
    """Raised when a stop is requested while a large file is read."""


def content_hash(path: Path, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file, or of a folder's file names and their contents.

    Reads in pieces, so that a file, or a line of it, may have any size. Raises OSError, or
    Interrupted once `is_stopped()`.
    """
    if not path.is_dir():
        return _of_file(path, is_stopped)
    whole = hashlib.sha256()
    files = (
        Path(folder, name) for folder, _, names in os.walk(path) for name in names if name[0] != "."
    )
    for file in sorted(files):
        whole.update(os.fsencode(file.relative_to(path)) + b"\0")
        whole.update(_of_file(file, is_stopped).encode() + b"\n")
    return whole.hexdigest()


def _of_file(path: Path, is_stopped: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if is_stopped():
                raise Interrupted
            digest.update(chunk)
    return digest.hexdigest()
