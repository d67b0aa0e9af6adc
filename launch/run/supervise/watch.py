"""A thread beside the training of a plain run: shows it, writes its status, passes on a stop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from launch.run.supervise.console import PlainView
from launch.run.supervise.parts import RunParts
from launch.run.supervise.plain_watch import PlainWatch
from launch.run.supervise.workload import ask_to_save

_POLL_S = 0.1


class Watch:
    """A watch over one run, from `start` to `stop`; its last call, `end_now`, ends the process."""

    def __init__(self, parts: RunParts, progress: PlainWatch, end_now: Callable[[], None]) -> None:
        self._parts, self._end_now = parts, end_now
        # Not a live view: libraries, or a debugger, print to the same screen in this process.
        self._view = PlainView(parts.console)
        self._progress = progress
        self._stop_asked_at: float | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Listen for signals, and start watching."""
        self._heard_by = self._parts.signals.listen_beside()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, once everything written has been shown."""
        self._is_over.set()
        self._thread.join()
        self._progress.end(time.monotonic())
        self._look()
        self._parts.follower.stop_sampling()

    def _look(self) -> None:
        """Take in and show new events."""
        follower = self._parts.follower
        events = follower.new_events()
        follower.take_in(events)
        self._parts.show(self._view, events)
        follower.write_when_due()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            self._parts.signals.hear(self._heard_by, _POLL_S)
            # Ctrl-C must be heard whatever goes wrong here; a lasting error is raised in `stop`.
            with contextlib.suppress(Exception):
                self._look()
                self._progress.look(time.monotonic())
            self._pass_on_stop()

    def _pass_on_stop(self) -> None:
        """Pass on a stop: ask the training to save; asked again, or with nothing to save, end it.

        While model and data are prepared, the code that waits for that checks for a stop itself.
        """
        parts, signals = self._parts, self._parts.signals
        if not signals.stop_asked or parts.state.status.phase == "preparing":
            return
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            if answer := ask_to_save(parts.run, parts.state):
                parts.say(answer)
            else:
                signals.end_now = True
            parts.state.enter("stopping")
        if time.monotonic() - self._stop_asked_at > parts.config.stop_timeout_s:
            signals.end_now = True
        if signals.end_now and not self._is_over.is_set():
            self._end_now()
