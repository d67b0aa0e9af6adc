"""A thread beside the training of a plain run: shows it, writes its status, passes on a stop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from rich.console import Console

from launch.run.supervise.console import PlainView
from launch.run.supervise.on_event import OnEvent
from launch.run.supervise.plain_watch import PlainWatch
from launch.run.supervise.workload import ask_to_save
from launch.track.sidecar import Tracking
from machine.processes.signals import Signals
from rundir.paths import RunDir
from state.follow import Follower
from state.run_state import RunState

_POLL_S = 0.1


class Watch:
    """A watch over one run, from `start` to `stop`; its last call, `end_now`, ends the process."""

    def __init__(  # noqa: PLR0913 - the parts of a run, each by name
        self,
        *,
        run: RunDir,
        state: RunState,
        follower: Follower,
        tracking: Tracking,
        on_event: OnEvent,
        console: Console,
        signals: Signals,
        stop_timeout_s: float,
        end_now: Callable[[], None],
        progress: PlainWatch,
    ) -> None:
        self._run, self._state, self._follower, self._console = run, state, follower, console
        self._tracking, self._on_event = tracking, on_event
        self._signals, self._stop_timeout_s, self._end_now = signals, stop_timeout_s, end_now
        # Not a live view: libraries, or a debugger, print to the same screen in this process.
        self._view = PlainView(console)
        self._progress = progress
        self._stop_asked_at: float | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Listen for signals, and start watching."""
        self._heard_by = self._signals.listen_beside()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, once everything written has been shown."""
        self._is_over.set()
        self._thread.join()
        self._progress.end(time.monotonic())
        self._look()
        self._follower.stop_sampling()

    def _look(self) -> None:
        """Take in and show new events."""
        events = self._follower.new_events()
        self._follower.take_in(events)
        self._view.show(self._state, events)
        self._tracking.look(events)
        self._on_event.look(events)
        self._follower.write_down()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            self._signals.hear(self._heard_by, _POLL_S)
            # Ctrl-C must be heard whatever goes wrong here; a lasting error is raised in `stop`.
            with contextlib.suppress(Exception):
                self._look()
                self._progress.look(time.monotonic())
            self._pass_on_stop()

    def _pass_on_stop(self) -> None:
        """Pass on a stop: ask the training to save; asked again, or with nothing to save, end it.

        While model and data are prepared, the code that waits for that checks for a stop itself.
        """
        if not self._signals.stop_asked or self._state.status.phase == "preparing":
            return
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            if said := ask_to_save(self._run, self._state):
                self._console.out(said, highlight=False)
            else:
                self._signals.end_now = True
            self._state.enter("stopping")
        if time.monotonic() - self._stop_asked_at > self._stop_timeout_s:
            self._signals.end_now = True
        if self._signals.end_now and not self._is_over.is_set():
            self._end_now()
