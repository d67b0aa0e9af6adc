"""Files of a run folder, opened so that nothing outside of it can be read.

No symbolic link is followed below the run folder, whoever has put it there, and only regular files
are opened: a pipe would block, a device does what it likes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

from monitor.http.json_api import NotFoundError
from rundir.paths import RunDir

MOST_JSON_BYTES = 64 << 20  # of one JSON file: a snapshot of answers is the largest
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def inside(run: RunDir, *parts: str) -> Iterator[BinaryIO]:
    """Yield the file `parts` below the run folder, open for reading.

    Raises NotFoundError if it is not there, is no regular file, or leads out of the folder.
    """
    try:
        descriptor = _opened(run, parts, _FILE)
    except OSError as error:
        raise missing(run, *parts) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # before fdopen, which raises for a folder
        os.close(descriptor)
        raise missing(run, *parts)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def names_inside(run: RunDir, *parts: str) -> list[str]:
    """Return the names in the folder `parts` below the run folder, sorted; none if there is none.

    Names that are hidden, or no UTF-8, are left out.
    """
    try:
        descriptor = _opened(run, parts, _FOLDER)
    except OSError:
        return []
    try:
        names = os.listdir(descriptor)  # noqa: PTH208 - of the folder that was opened
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return sorted(name for name in names if not name.startswith(".") and is_text(name))


def json_inside(run: RunDir, *parts: str) -> Any:
    """Return what a JSON file holds. Raises NotFoundError if it is not there, or not whole."""
    with inside(run, *parts) as file:
        if os.fstat(file.fileno()).st_size > MOST_JSON_BYTES:
            raise NotFoundError(
                f"{'/'.join(parts)} of {run.run_id} is larger than {MOST_JSON_BYTES >> 20} MiB",
                "read the file itself, in the run folder",
            )
        data = file.read(MOST_JSON_BYTES)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotFoundError(
            f"{'/'.join(parts)} of {run.run_id} is no whole JSON: {error}", "ask again"
        ) from error


def text_inside(run: RunDir, *parts: str, most_bytes: int = 1 << 20) -> str:
    """Return a text, of at most `most_bytes`. Raises NotFoundError if it is not there."""
    with inside(run, *parts) as file:
        return file.read(most_bytes).decode("utf-8", errors="replace")


def missing(run: RunDir, *parts: str) -> NotFoundError:
    """Return the error for a file that the run has not."""
    return NotFoundError(
        f"{run.run_id} has no {'/'.join(parts)}", f"api/runs/{run.run_id}/status   # what it does"
    )


def is_text(name: str) -> bool:
    """Return whether a file's name is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opened(run: RunDir, parts: tuple[str, ...], flags: int) -> int:
    """Open `parts`, one folder after the other; raises OSError."""
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise FileNotFoundError(parts)
    *folders, last = (str(run.path), *parts)
    with ExitStack() as held:
        here = None
        for folder in folders:
            here = os.open(folder, _FOLDER, dir_fd=here)
            held.callback(os.close, here)
        return os.open(last, flags, dir_fd=here)
