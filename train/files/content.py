"""Results of reading whole files, such as digests, remembered as long as a file is the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rundir.atomic import write_bytes
from rundir.paths import cache_folder

# A file written less than this long before it is examined may be written again unnoticed: some file
# systems store times only to two seconds.
_SETTLED_S = 5.0
_REMEMBERED_BYTES = 8 << 20  # smaller files are read in the time that remembering takes


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits. Raises OSError if it cannot be read."""
    return remembered(path, "digests", lambda: _read(path)).decode()


def remembered(path: Path, kind: str, make: Callable[[], bytes], *made_with: Any) -> bytes:
    """Return what `make` finds out about the file at `path`, or found out before if it is the same.

    `made_with` is all else that the result depends on. Small files are not remembered, nor those
    that were written just now. Raises OSError if there is no file, and what `make` raises.
    """
    before = path.stat()
    if before.st_size < _REMEMBERED_BYTES:
        return make()
    times, places = (before.st_mtime_ns, before.st_ctime_ns), (before.st_ino, before.st_dev)
    head = json.dumps([*made_with, before.st_size, *times, *places]).encode() + b"\n"
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    note = cache_folder() / kind / name
    with contextlib.suppress(OSError):
        if (content := note.read_bytes()).startswith(head):
            return content.removeprefix(head)
    made = make()
    if time.time() - max(before.st_mtime, before.st_ctime) > _SETTLED_S:
        with contextlib.suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(note, head + made, durable=False)
    return made


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()
