"""Ctrl-C and friends: handlers only take note; the supervising loop acts on it."""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 1.0  # a SIGTERM within this time is the same request, sent to a group and its members


class Signals:
    """What this process has been asked: to stop (and save), and then to end now."""

    def __init__(self) -> None:
        self.stop_asked = False
        self.end_now = False
        self._asked_at = 0.0

    def listen(self) -> None:
        """From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending this process.

        One that is ignored stays so: `nohup` means what it says.
        """
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def listen_beside(self) -> int:
        """As `listen`, for a thread beside a main one that may be busy; returns what it `hear`s by.

        Python runs handlers in the main thread only, and not while that waits within some library:
        for a GPU, say. The number of the signal is in a pipe at once.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return reader

    def hear(self, reader: int, timeout_s: float) -> None:
        """Wait so long for signals, and note what has come."""
        ready, _, _ = select.select([reader], [], [], timeout_s)
        for number in os.read(reader, 64) if ready else b"":
            if number in _HEARD:
                self._note(number, None)

    def ask_to_stop(self) -> None:
        """As the first Ctrl-C; asking again changes nothing."""
        if not self.stop_asked:
            self.stop_asked, self._asked_at = True, time.monotonic()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        is_again = time.monotonic() - self._asked_at >= _AGAIN_S or number == signal.SIGINT
        # A closing terminal sends SIGHUP, often twice: that is never a wish to lose work.
        if self.stop_asked and is_again and number != signal.SIGHUP:
            self.end_now = True
        self.ask_to_stop()


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A stop was asked for before there was anything to save."""
