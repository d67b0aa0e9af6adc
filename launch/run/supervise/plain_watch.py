"""The watch over the progress of a plain run: it says where a training stands that has frozen.

Nothing outside of such a run looks at it. It is only told: the process goes on.
"""

from __future__ import annotations

import faulthandler
import statistics
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from machine.processes.activity import busy_s
from rundir.control import is_asked
from rundir.paths import RunDir, shown
from rundir.pulse import ASIDE, PulseState, read_pulse
from rundir.units import clock_text
from state.hang import allowed_s

_LOOK_EVERY_S = 1.0
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
    """A watchdog for the process that it is in; `tell` takes what it has to say.

    Stacks go to `log` (an open file) as well: even if no Python code can run, because C code
    keeps the GIL, by faulthandler's own thread. Only time in which it could look counts.
    """

    def __init__(
        self, run: RunDir, asked_s: float, log: int | IO[str], tell: Callable[[str], None]
    ) -> None:
        self._run, self._asked_s, self._log, self._tell = run, asked_s, log, tell
        self._main = threading.main_thread().ident
        self._seen: PulseState | None = None
        self._steps: deque[float] = deque(maxlen=_NUM_STEPS)
        self._looked_at = self._moved_at = self._stepped_at = 0.0
        self._busy_s = 0.0
        self._told_at = 0.0

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
        limit_s = allowed_s(self._asked_s, is_aside=True)
        faulthandler.dump_traceback_later(limit_s, file=self._log)
        if self._seen is None or pulse.count != self._seen.count or is_asked(self._run, "pause"):
            self._has_moved(pulse, now)
            return
        is_aside = pulse.num_steps == 0 or pulse.phase in ASIDE or self._computes(pulse, now)
        step_s = statistics.median(self._steps) if self._steps else 0.0
        limit_s = allowed_s(self._asked_s, step_s=step_s, is_aside=is_aside)
        if not self._told_at and now - self._moved_at > limit_s:
            self._told_at = self._moved_at
            self._say(pulse, now - self._moved_at, limit_s)

    def end(self, now: float) -> None:
        """Stop watching; a freeze that has ended since the last look is told of as over."""
        faulthandler.cancel_dump_traceback_later()
        pulse = read_pulse(self._run.pulse(0))
        if self._seen is not None and pulse is not None and pulse.count != self._seen.count:
            self._has_moved(pulse, now)
        self._asked_s = 0

    def _has_moved(self, pulse: PulseState, now: float) -> None:
        if self._told_at:
            self._tell(f"the training moves again, after {clock_text(now - self._told_at)}")
            self._told_at = 0.0
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
        self._tell(
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
