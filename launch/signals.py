"""Ctrl-C and friends: handlers only take note; the supervising loop acts on it."""

from __future__ import annotations

import signal
from types import FrameType

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts the requests to stop that this process has received."""

    def __init__(self) -> None:
        self.num_stops = 0

    def listen(self) -> None:
        """From now on SIGINT, SIGTERM and SIGHUP are counted instead of ending this process."""
        for number in _HEARD:
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.num_stops += 1


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A stop was asked for before there was anything to save."""
