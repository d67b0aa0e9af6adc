"""Progress of data preparation: one rewritten line on a terminal, or a line every ten seconds."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time

_EVERY_S = 10.0
_EVERY_ON_TTY_S = 0.5
_MB = 1e6


class PrepareProgress:
    """Shows rows, share and speed of reading `total_bytes`, the size of the files on disk."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes, self._is_tty = max(1, total_bytes), sys.stderr.isatty()
        self._started = time.monotonic()
        self._every_s = _EVERY_ON_TTY_S if self._is_tty else _EVERY_S
        self._next_at = self._started + self._every_s
        self._is_shown = False

    def at(self, done_bytes: int, num_rows: int) -> None:
        """Show the progress, if it is due."""
        now = time.monotonic()
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
        """Remove the line from a terminal."""
        if self._is_tty and self._is_shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        # If nobody can read it, that is no reason to stop.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
