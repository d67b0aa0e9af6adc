"""Progress of data preparation: one rewritten line on a terminal, or a line every ten seconds.

Every second an event tells of it too, with the memory, for whoever looks from outside.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar

import psutil

from rundir.events import EventWriter

_EVENTS: ContextVar[EventWriter | None] = ContextVar("events", default=None)
_EVENT_EVERY_S = 1.0
_EVERY_S = 10.0
_EVERY_ON_TTY_S = 0.5
_MB = 1e6


@contextlib.contextmanager
def reported_in(events: EventWriter) -> Iterator[None]:
    """Let all progress within the block be told in `events` as well."""
    before = _EVENTS.set(events)
    try:
        yield
    finally:
        _EVENTS.reset(before)


class ReadingProgress:
    """Shows rows, share and speed of reading `total_bytes`, the size of the files on disk."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes, self._is_tty = max(1, total_bytes), sys.stderr.isatty()
        self._started = time.monotonic()
        self._every_s = _EVERY_ON_TTY_S if self._is_tty else _EVERY_S
        self._next_at = self._started + self._every_s
        self._is_shown = False
        self._event_at, self._last = self._started, (0, 0)

    def at(self, done_bytes: int, num_rows: int) -> None:
        """Show the progress, if it is due."""
        now, self._last = time.monotonic(), (done_bytes, num_rows)
        if now >= self._event_at:
            self._event_at = now + _EVENT_EVERY_S
            self._emit()
        if now < self._next_at:
            return
        self._next_at, self._is_shown = now + self._every_s, True
        took_s = now - self._started
        left_s = round(took_s * (self._total_bytes - done_bytes) / max(1, done_bytes))
        text = (
            f"data: {num_rows:,} rows, {done_bytes / self._total_bytes:.0%} of "
            f"{self._total_bytes / _MB:,.1f} MB, {done_bytes / _MB / took_s:.1f} MB/s, "
            f"{left_s // 60}:{left_s % 60:02d} left"
        )
        if self._is_tty:
            self._write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        else:
            self._write(f"{text}\n")

    def end(self) -> None:
        """Remove the line from a terminal, and tell of the end."""
        self._emit()
        if self._is_tty and self._is_shown:
            self._write("\r\x1b[K")

    def _emit(self) -> None:
        events = _EVENTS.get()
        if events is None:
            return
        done_bytes, num_rows = self._last
        events.emit(
            "metric",
            "prepare.progress",
            num_rows=num_rows,
            done_bytes=done_bytes,
            total_bytes=self._total_bytes,
            pss_bytes=_pss_bytes(),
        )

    def _write(self, text: str) -> None:
        # If nobody can read it, that is no reason to stop.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _pss_bytes() -> int:
    """Return the memory of this process and of those that tokenise for it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        whole = psutil.Process()
        for child in (whole, *whole.children()):
            with contextlib.suppress(psutil.Error):
                total += child.memory_full_info().pss
    return total
