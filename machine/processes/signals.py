"""Stop signals such as Ctrl-C: handlers only record them; the supervising loop acts on them."""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType

from rundir.control import is_stop_by_hand
from rundir.paths import RunDir

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 1.0  # a SIGTERM within this time is the same request, sent to a group and to a member


class Signals:
    """The requests made by signals: to stop (and save), and then to end now."""

    def __init__(self) -> None:
        self.stop_asked = False
        self.end_now = False
        self._is_term_first = False
        self._asked_at = 0.0

    @classmethod
    def listening(cls) -> Signals:
        """Return signals that are recorded from now on, as by `listen`."""
        signals = cls()
        signals.listen()
        return signals

    def listen(self) -> None:
        """Record SIGINT, SIGTERM and SIGHUP from now on, instead of ending on them.

        An ignored signal stays ignored, for `nohup`.
        """
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def listen_beside(self) -> int:
        """Listen from a thread beside a busy main thread; return the descriptor for `hear`.

        Python runs handlers in the main thread only, and not while that waits inside a library,
        such as for a GPU. The signal's number is written to a pipe at once.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return reader

    def hear(self, reader: int, timeout_s: float) -> None:
        """Wait up to `timeout_s` for signals, and record those received."""
        ready, _, _ = select.select([reader], [], [], timeout_s)
        for number in os.read(reader, 64) if ready else b"":
            if number in _HEARD:
                self._note(number, None)

    def ask_to_stop(self) -> None:
        """Request a stop, as the first Ctrl-C does; repeated calls change nothing."""
        if not self.stop_asked:
            self.stop_asked, self._asked_at = True, time.monotonic()

    def has_preempted(self, run: RunDir) -> bool:
        """Return whether SIGTERM came first: so do schedulers take a machine back.

        `airlock stop` sends it as well, as shells make background jobs ignore SIGINT.
        """
        return self._is_term_first and not is_stop_by_hand(run)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        is_again = time.monotonic() - self._asked_at >= _AGAIN_S or number == signal.SIGINT
        # A closing terminal sends SIGHUP, often twice: that is never a request to lose work.
        if self.stop_asked and is_again and number != signal.SIGHUP:
            self.end_now = True
        self._is_term_first |= number == signal.SIGTERM and not self.stop_asked
        self.ask_to_stop()


class Interrupted(Exception):  # noqa: N818 - not an error
    """Raised when a stop is requested before there is anything to save; it ends a command."""
