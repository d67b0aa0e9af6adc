"""The hash of what was dropped: the same content has the same, whatever it is called."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from inbox.models.held_out_scores import StoppedError

_CHUNK_BYTES = 1024 * 1024


def content_hash(path: Path, is_stopped: Callable[[], bool]) -> str:
    """Return the SHA-256 of a file, or of a folder's file names and their contents.

    Reads in pieces, so that a file, or a line of it, may have any size. Raises OSError, or
    StoppedError once `is_stopped()`.
    """
    whole = hashlib.sha256()
    if not path.is_dir():
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                if is_stopped():
                    raise StoppedError
                whole.update(chunk)
        return whole.hexdigest()
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for below in sorted(files):
        if not below.name.startswith("."):
            whole.update(os.fsencode(below.relative_to(path)) + b"\0")
            whole.update(content_hash(below, is_stopped).encode() + b"\n")
    return whole.hexdigest()
