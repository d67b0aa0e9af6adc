"""One daemon for a folder: the lock that it holds, which the kernel frees whenever it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from inbox.layout import Layout
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_LOOK_S = 0.2  # a look at the lock is over within this


@contextlib.contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Hold the lock of the folder; raise UserError, naming the holder, if another process does.

    No pid is compared: one may be reused, or count in another container. What is started here does
    not inherit the lock.
    """
    lock = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            _take(lock)
        except BlockingIOError:
            raise UserError(
                f"another inbox has {layout.path}: {holder_text(layout)}",
                do=f"./airlock inbox {layout.quoted} status   # what it does; stop: ends it",
                code=ExitCode.PREFLIGHT,
            ) from None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_t": time.time()}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(holder).encode() + b"\n", 0)
        yield
    finally:
        os.close(lock)


def _take(lock: int) -> None:
    """Take the lock; raise BlockingIOError if another process holds it, and not only looks at it.

    Who asks whether a daemon lives (`is_held`) has the lock for a moment.
    """
    deadline = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S / 20)
        else:
            return


def is_held(layout: Layout) -> bool:
    """Return whether a daemon lives, anywhere that shares the folder's locks."""
    try:
        lock = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    else:
        return False
    finally:
        os.close(lock)


def holder(layout: Layout) -> dict[str, Any]:
    """Return who held the lock last: pid, host, since_t; {} if that cannot be read."""
    try:
        found = json.loads(layout.lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def holder_text(layout: Layout) -> str:
    """Return the holder in words."""
    found = holder(layout)
    if not found:
        return "a process that has just started"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.get("since_t", 0)))
    return f"process {found.get('pid')} on {found.get('host')}, since {since}"
