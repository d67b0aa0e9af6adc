"""The watch over a plain run, in its own process: nothing outside of such a run looks at it.

Where a training has frozen is only said: the process goes on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from launch.run.supervise.console import PlainView
from launch.run.supervise.parts import RunParts
from launch.run.supervise.policies import StopPolicy
from launch.run.supervise.workload import ask_to_save
from machine.processes.activity import busy_s
from rundir.control import is_asked
from rundir.paths import RunDir, shown
from rundir.pulse import ASIDE, PulseState, read_pulse
from rundir.units import clock_text
from state.hang_limit import allowed_s

_POLL_S = 0.1
_LOOK_EVERY_S = 1.0  # at the pulse
_BUSY = 0.05  # of a core: more is a long step on a CPU, or a compilation
_NUM_STEPS = 50  # last steps, whose durations tell the usual one
_DOES = {
    "data": "reads its data",
    "forward": "computes (forward)",
    "backward": "computes (backward)",
    "optimizer": "computes (optimizer)",
    "comm": "exchanges values",
    "step": "is between two steps",
    "eval": "evaluates",
    "checkpoint": "writes a checkpoint",
    "export": "writes the model",
    "start": "is starting",
}


class PlainWatch:
    """A thread beside the training: shows it, writes its status, passes on a stop.

    It watches from `start` to `stop`; its last call, `end_now`, ends the process.
    """

    def __init__(self, parts: RunParts, progress: FreezeWatch, end_now: Callable[[], None]) -> None:
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


class FreezeWatch:
    """A watchdog for the process that it is in; `report` takes what it has to say.

    Stacks go to `log` (an open file) as well: even if no Python code can run, because C code
    keeps the GIL, by faulthandler's own thread. Only time in which it could look counts.
    """

    def __init__(
        self, run: RunDir, asked_s: float, log: int | IO[str], report: Callable[[str], None]
    ) -> None:
        self._run, self._asked_s, self._log, self._report = run, asked_s, log, report
        self._main = threading.main_thread().ident
        self._seen: PulseState | None = None
        self._steps: deque[float] = deque(maxlen=_NUM_STEPS)
        self._looked_at = self._moved_at = self._stepped_at = 0.0
        self._busy_s = 0.0
        self._frozen_since = 0.0

    def look(self, now: float) -> None:
        """Look at the pulse at `now` (time.monotonic()), and tell of a freeze, each only once."""
        if self._asked_s == 0 or now - self._looked_at < _LOOK_EVERY_S:
            return
        self._moved_at += max(0.0, now - self._looked_at - 2 * _LOOK_EVERY_S)  # it did not run
        self._looked_at = now
        pulse = read_pulse(self._run.pulse(0))
        if pulse is None:
            return
        # For code that keeps the GIL: this thread could not look any more then.
        limit_s = allowed_s(self._asked_s, is_slow=True)
        faulthandler.dump_traceback_later(limit_s, file=self._log)
        if self._seen is None or pulse.count != self._seen.count or is_asked(self._run, "pause"):
            self._has_moved(pulse, now)
            return
        is_aside = pulse.num_steps == 0 or pulse.phase in ASIDE or self._computes(pulse, now)
        step_s = statistics.median(self._steps) if self._steps else 0.0
        limit_s = allowed_s(self._asked_s, step_s=step_s, is_slow=is_aside)
        if not self._frozen_since and now - self._moved_at > limit_s:
            self._frozen_since = self._moved_at
            self._say(pulse, now - self._moved_at, limit_s)

    def end(self, now: float) -> None:
        """Stop watching; a freeze that has ended since the last look is told of as over."""
        faulthandler.cancel_dump_traceback_later()
        pulse = read_pulse(self._run.pulse(0))
        if self._seen is not None and pulse is not None and pulse.count != self._seen.count:
            self._has_moved(pulse, now)
        self._asked_s = 0

    def _has_moved(self, pulse: PulseState, now: float) -> None:
        if self._frozen_since:
            self._report(f"the training moves again, after {clock_text(now - self._frozen_since)}")
            self._frozen_since = 0.0
        if self._seen is not None and pulse.num_steps > self._seen.num_steps > 0:
            num = pulse.num_steps - self._seen.num_steps
            self._steps.append((now - self._stepped_at) / num)
        if self._seen is None or pulse.num_steps != self._seen.num_steps:
            self._stepped_at = now
        self._seen, self._moved_at = pulse, now
        self._busy_s = busy_s([pulse.pid])

    def _computes(self, pulse: PulseState, now: float) -> bool:
        """Return whether the process has computed since it last moved: it may be in a long step."""
        return busy_s([pulse.pid]) - self._busy_s > _BUSY * max(1.0, now - self._moved_at)

    def _say(self, pulse: PulseState, still_s: float, limit_s: float) -> None:
        own, innermost = self._place()
        faulthandler.dump_traceback(file=self._log)
        after = f" after step {pulse.step}" if pulse.step else ""
        inside = "" if innermost == own else f", in {innermost}"
        kind = "the data" if pulse.phase == "data" else "the device that computes"
        self._report(
            f"the training stands still for {clock_text(still_s)}, and {clock_text(limit_s)} are "
            f"usual at most: it {_DOES.get(pulse.phase, pulse.phase)}{after}, at {own}{inside}; "
            f"look at {kind}. All stacks: {shown(self._run.rank_log(0, 0))}. It is not ended.\n"
            f"  → ./airlock doctor --pid {pulse.pid}   # looks again; on a Mac, if it stands in "
            "what the GPU computes: --set launch.device=cpu"
        )

    def _place(self) -> tuple[str, str]:
        """Return where the main thread is: in the innermost code that is no library's, and at all.

        Its own innermost call is the second one; both are `file:line in function`.
        """
        frame = sys._current_frames().get(self._main or 0)
        stack = traceback.extract_stack(frame) if frame is not None else []
        places = [
            (f"{_short(frame_.filename)}:{frame_.lineno} in {frame_.name}", frame_.filename)
            for frame_ in reversed(stack)
        ]
        if not places:
            return "an unknown place", "an unknown place"
        own = (place for place, file in places if "site-packages" not in file and _is_code(file))
        return next(own, places[0][0]), places[0][0]


def _is_code(file: str) -> bool:
    return not file.startswith("<") and "/lib/python" not in file


def _short(file: str) -> str:
    return file if file.startswith("<") else shown(Path(file))
