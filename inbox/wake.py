"""Waiting until something happens: a file comes, a process ends, a signal is heard, time is up."""

from __future__ import annotations

import contextlib
import logging
import os
import select
from collections.abc import Callable, Iterable
from pathlib import Path

from machine.mounts import filesystem_of, is_network

try:
    from watchdog.events import (
        DirCreatedEvent,
        DirMovedEvent,
        FileClosedEvent,
        FileCreatedEvent,
        FileDeletedEvent,
        FileMovedEvent,
        FileSystemEvent,
        FileSystemEventHandler,
    )
    from watchdog.observers import Observer

    HAS_WATCHDOG = True
except ImportError:  # an extra: without it the folder is looked at every few seconds
    HAS_WATCHDOG = False

_CALM_S = 30.0  # between two looks where inotify tells of changes, in case it misses one


class Wake:
    """Ends a wait early; a byte in its pipe does. Create one in the main thread."""

    def __init__(self, folders: Iterable[Path], poll_s: float) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop_watching = _watch(list(folders), self.call)
        self.means = "inotify" if self._stop_watching else "polling"
        self.idle_s = _CALM_S if self._stop_watching else poll_s

    def call(self) -> None:
        """End the present wait, or the next; from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writer, b"!")

    def wait(self, timeout_s: float, process: int | None = None) -> None:
        """Wait so long at most; `process` is the pidfd of one whose end ends the wait."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if process is not None:
            poll.register(process, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def close(self) -> None:
        """Stop watching."""
        if self._stop_watching:
            self._stop_watching()


def _watch(folders: list[Path], call: Callable[[], None]) -> Callable[[], None] | None:
    """Have `call()` called whenever something changes in the folders; None if that cannot be."""
    # On a network file system other machines may write, and the kernel does not tell of it.
    if not HAS_WATCHDOG or any(is_network(filesystem_of(folder)) for folder in folders):
        return None

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            _ = event  # what it was is found by looking
            call()

    # Not what a look of our own causes: files opened, and closed unwritten.
    changes = [
        *(DirCreatedEvent, DirMovedEvent),
        *(FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileMovedEvent),
    ]
    # Its threads tell of a last event that comes while they are stopped, as of an error.
    logging.getLogger("watchdog.observers").setLevel(logging.CRITICAL)
    observer = Observer()
    try:
        for folder in folders:
            observer.schedule(Handler(), str(folder), event_filter=changes)
        observer.start()
    except OSError:  # as many watches as a user may have
        return None
    return observer.stop
