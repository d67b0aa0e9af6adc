"""What a file holds, as a digest; of a file that has not changed it is remembered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from rundir.atomic import write_text
from rundir.paths import cache_folder

# A file written within this time of being looked at may be written again unseen: some file systems
# keep times to two seconds.
_SETTLED_S = 5.0
_REMEMBERED_BYTES = 8 << 20  # smaller ones are read in the time that remembering takes


def digest_of(path: Path) -> str:
    """The SHA-256 of a file in hex digits. Raises OSError when it cannot be read."""
    before = path.stat()
    if before.st_size < _REMEMBERED_BYTES:
        return _read(path)
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    note = cache_folder() / "digests" / f"{name}.json"
    seen = [before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino, before.st_dev]
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(note.read_text(encoding="ascii"))
        if found["seen"] == seen:
            return str(found["sha256"])
    digest = _read(path)
    if time.time() - max(before.st_mtime, before.st_ctime) > _SETTLED_S:
        with contextlib.suppress(OSError):  # it is only there to be quick
            note.parent.mkdir(parents=True, exist_ok=True)
            write_text(note, json.dumps({"seen": seen, "sha256": digest}), durable=False)
    return digest


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
