"""Progress of a fetch: a rewritten line on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable

from rundir.units import size_text

_EVERY_S = 10.0
_EVERY_ON_TTY_S = 0.5
_RATE_OVER_S = 20.0
_SILENT_S = 5.0  # without a byte for so long is reported: more than a slow connection


def say(text: str) -> None:
    """Write a line to standard error; failure to write must not stop the fetch."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class FetchProgress:
    """Progress display of a fetch; `have()` returns (bytes, complete files) present so far."""

    def __init__(
        self, what: str, total_bytes: int, num_files: int, have: Callable[[], tuple[int, int]]
    ) -> None:
        self._what, self._total_bytes, self._num_files = what, total_bytes, num_files
        self._have = have
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), have()[0])])
        self._moved_at, self._is_tty = time.monotonic(), sys.stderr.isatty()
        self._next_at = time.monotonic() + (0 if self._is_tty else _EVERY_S)

    def tick(self) -> None:
        """Show the progress if it is due."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + (_EVERY_ON_TTY_S if self._is_tty else _EVERY_S)
        self._show(now)

    def end(self) -> None:
        """Show the final state."""
        self._show(time.monotonic())
        if self._is_tty:
            say("")

    def _show(self, now: float) -> None:
        have_bytes, num_whole = self._have()
        if have_bytes != self._seen[-1][1]:
            self._moved_at = now
        self._seen.append((now, have_bytes))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_OVER_S:  # noqa: PLR2004 - ends
            self._seen.popleft()
        text = (
            f"fetch: {self._what}: {size_text(have_bytes)} of {size_text(self._total_bytes)}, "
            f"{num_whole} of {self._num_files} files, {self._speed(now, have_bytes)}"
        )
        if self._is_tty:
            width = shutil.get_terminal_size().columns - 1
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"\r{text[:width]}\x1b[K")
                sys.stderr.flush()
        else:
            say(text)

    def _speed(self, now: float, have_bytes: int) -> str:
        (since, before_bytes) = self._seen[0]
        per_s = (have_bytes - before_bytes) / max(now - since, 1e-9)
        if have_bytes < self._total_bytes and now - self._moved_at > _SILENT_S:
            return f"nothing has come for {now - self._moved_at:.0f} s"
        if per_s <= 0:
            return "0 MiB/s"
        left_s = round((self._total_bytes - have_bytes) / per_s)
        return f"{size_text(per_s)}/s, {left_s // 60}:{left_s % 60:02d} left"
