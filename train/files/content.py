"""Digests of file contents, remembered for files that have not changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from rundir.atomic import write_text
from rundir.paths import cache_folder

# A file written less than this long before it is examined may be written again unnoticed: some file
# systems store times only to two seconds.
_SETTLED_S = 5.0
_REMEMBERED_BYTES = 8 << 20  # smaller files are read in the time that remembering takes


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits. Raises OSError if it cannot be read."""
    before = path.stat()
    if not is_remembered(before):
        return _read(path)
    note = note_of(path, "digests", ".json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(note.read_text(encoding="ascii"))
        if content["seen"] == seen(before):
            return str(content["sha256"])
    digest = _read(path)
    if is_settled(before):
        with contextlib.suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_text(note, json.dumps({"seen": seen(before), "sha256": digest}), durable=False)
    return digest


def is_remembered(file: os.stat_result) -> bool:
    """Return whether a file is so large that results about it are worth remembering."""
    return file.st_size >= _REMEMBERED_BYTES


def is_settled(file: os.stat_result) -> bool:
    """Return whether any change of the file from now on would be noticed."""
    return time.time() - max(file.st_mtime, file.st_ctime) > _SETTLED_S


def seen(file: os.stat_result) -> list[int]:
    """Return values that stay the same as long as a file does not change."""
    return [file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino, file.st_dev]


def note_of(path: Path, kind: str, suffix: str) -> Path:
    """Return the path of the note that remembers results about the file at `path`."""
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache_folder() / kind / f"{name}{suffix}"


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
