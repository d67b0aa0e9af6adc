"""A thread beside the training of a plain run: shows it, writes its status, passes on a stop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from launch.run.supervise.console import PlainView
from launch.run.supervise.parts import RunParts
from launch.run.supervise.plain_watch import PlainWatch
from launch.run.supervise.policies import StopPolicy
from launch.run.supervise.workload import ask_to_save

_POLL_S = 0.1


class Watch:
    """A watch over one run, from `start` to `stop`; its last call, `end_now`, ends the process."""

    def __init__(self, parts: RunParts, progress: PlainWatch, end_now: Callable[[], None]) -> None:
        self._parts, self._end_now = parts, end_now
        # Not a live view: libraries, or a debugger, print to the same screen in this process.
        self._view = PlainView(parts.console)
        self._progress = progress
        self._stop = StopPolicy(
            parts, ask=partial(ask_to_save, parts.run, parts.state), end=self._end
        )
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
        self._parts.follow(self._view)
        self._parts.follower.stop_sampling()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            self._parts.signals.hear(self._heard_by, _POLL_S)
            # Ctrl-C must be heard whatever goes wrong here; a lasting error is raised in `stop`.
            with contextlib.suppress(Exception):
                self._parts.follow(self._view)
                self._progress.look(time.monotonic())
            # While model and data are prepared, the code that waits for that checks for a stop.
            if self._parts.signals.stop_asked and self._parts.state.status.phase != "preparing":
                self._stop.pass_on()

    def _end(self) -> None:
        if not self._is_over.is_set():
            self._end_now()
