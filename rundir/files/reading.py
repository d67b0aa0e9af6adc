"""Files that others write: one that grows, such as a log, or JSON that may be half-written."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


class GrowingFile:
    """A file read from its beginning, or from `from_end_bytes` before its end; it may not exist."""

    def __init__(self, path: Path, *, from_end_bytes: int | None = None) -> None:
        self.path = path
        self.offset = 0  # of the first byte that was not read yet
        if from_end_bytes is not None:
            with suppress(OSError):
                self.offset = max(0, path.stat().st_size - from_end_bytes)

    def new_bytes(self, most_bytes: int = -1) -> bytes:
        """Return what was appended since the last call, `most_bytes` of it at most.

        Nothing for a file that is not there or cannot be read.
        """
        try:
            if self.path.stat().st_size == self.offset:  # most often, ten times a second
                return b""
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(most_bytes)
        except OSError:
            return b""
        self.offset += len(data)
        return data


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; {} if there is none, or it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
