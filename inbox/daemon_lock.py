"""One daemon for a folder: the lock that it holds, which the kernel frees whenever it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator

from inbox.layout import Layout
from rundir.errors import ExitCode, UserError
from rundir.files.lock import is_locked, lock


@contextlib.contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Hold the lock of the folder; raise UserError, naming the holder, if another process does.

    What is started here does not inherit the lock.
    """
    file = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not lock(file):
            raise UserError(
                f"another inbox has {layout.path}: {holder_text(layout)}",
                do=f"./airlock inbox {layout.quoted} status   # what it does; stop: ends it",
                code=ExitCode.PREFLIGHT,
            )
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_t": time.time()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode() + b"\n", 0)
        yield
    finally:
        os.close(file)


def is_held(layout: Layout) -> bool:
    """Return whether a daemon lives, anywhere that shares the folder's locks."""
    try:
        file = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_locked(file)
    finally:
        os.close(file)


def holder_text(layout: Layout) -> str:
    """Return who held the lock last, in words."""
    try:
        holder = json.loads(layout.lock.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since_t"]))
        return f"process {holder['pid']} on {holder['host']}, since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"
