"""Hang detection: no rank has made progress for long, although its processes are alive."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machine.processes.activity import all_io_bytes, busy_s, output_bytes
from rundir.config import LaunchConfig
from rundir.events import Event
from rundir.paths import RunDir
from rundir.pulse import ASIDE, read_pulse
from state.hang_limit import allowed_s
from state.run_state import RunState
from state.waits import Stall, Waits

_LOOK_EVERY_S = 1.0
_NUM_STEPS = 50  # last steps, whose durations tell the usual one
_REAL_IO_BYTES = 64 << 10  # less than this per second is the rank's own bookkeeping
_IDLE_SHARE = 0.005  # of a core: the most that threads which only wait take in total

_BEFORE_GATE = ("spawn", "waiting")  # phases of a rank

# From here on ranks need each other: one of our trainer has seen that all are there, one of a
# script joins the process group.
_JOINS = (("end", "all_loaded.wait"), ("end", "pg.init"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A run that has made no progress for `still_s` seconds, where `limit_s` were allowed."""

    still_s: float
    limit_s: float


class HangWatch:
    """A watchdog for one run; only time in which it could look at the run counts.

    So a clock that jumps, a laptop that sleeps or a launcher that is stopped changes nothing.
    """

    def __init__(self, run: RunDir, config: LaunchConfig, state: RunState) -> None:
        self._run, self._timeout_s, self._state = run, config.hang_timeout_s, state
        self._joined: set[int] = set()
        self._attempt = 0
        self._looked_at = time.monotonic()
        self._still_s = 0.0
        self._seen: object = None
        self._has_told = False
        self._steps: deque[float] = deque(maxlen=_NUM_STEPS)
        self._num_steps, self._step_at = 0, 0.0
        self._io_bytes, self._busy_s = 0, 0.0
        self._waits = Waits(run, config.hang_timeout_s)
        self._is_over = False
        self._stall: Stall | None = None

    def new_stall(self) -> Stall | None:
        """Return, once, a stall of our trainer's ranks, which is a hang only if it lasts."""
        stall, self._stall = self._stall, None
        return stall

    def is_over(self) -> bool:
        """Return, once, whether the run makes progress again after the last hang."""
        is_over, self._is_over = self._is_over, False
        return is_over

    def look(self, events: Iterable[Event], now: float) -> Hang | None:
        """Take in what is new at `now` (time.monotonic()); return a hang, but each only once.

        The status of the run also gets who waits for whom.
        """
        if self._timeout_s == 0:
            return None
        has_moved = self._take_in(events)
        if has_moved:
            self._moved()
        if now - self._looked_at < _LOOK_EVERY_S:
            return None
        ran_s = min(now - self._looked_at, 2 * _LOOK_EVERY_S)
        self._looked_at = now
        if not self._counts():
            self._waits.reset()
            self._state.status.waiting = None
            self._moved()
            return None
        return self._look_at_waits(now, ran_s) or self._look_at_stillness(now, ran_s)

    def has_gone_on(self) -> bool:
        """Return whether a rank has made progress while the hang was being examined."""
        pulses = [read_pulse(self._run.pulse(row.rank)) for row in self._state.status.ranks]
        counts = [pulse.count for pulse in pulses if pulse is not None]
        is_known = len(counts) == len(pulses) and self._seen is not None
        if self._state.of_script:
            return self._waits.has_gone_on(self._attempt, time.monotonic())
        return is_known and counts != self._seen

    def _moved(self) -> None:
        self._is_over |= self._has_told and self._counts()
        self._still_s, self._has_told = 0.0, False

    def _look_at_stillness(self, now: float, ran_s: float) -> Hang | None:
        limit_s = self._look(now)
        if limit_s is None:
            self._moved()
            return None
        self._still_s += ran_s
        has_told = self._has_told or (self._state.of_script and self._waits.has_told)
        if self._still_s <= limit_s or has_told:
            return None
        self._has_told = True
        return Hang(still_s=round(self._still_s, 1), limit_s=round(limit_s, 1))

    def _look_at_waits(self, now: float, ran_s: float) -> Hang | None:
        """Look who waits for whom; a stall is a hang of a script: our trainer shows more."""
        rows = self._state.status.ranks
        pids = {row.rank: row.pid for row in rows if row.pid is not None}
        if len(pids) < len(rows):
            self._waits.reset()
            return None
        step_s = statistics.median(self._steps) if self._steps else 0.0
        stall = self._waits.look(pids, self._attempt, now, ran_s, step_s)
        self._state.status.waiting = self._waits.text
        self._is_over |= self._waits.is_over() and self._state.of_script
        if stall is None or not self._state.of_script:
            self._stall = stall or self._stall
            return None
        return Hang(still_s=stall.waited_s, limit_s=stall.limit_s)

    def _take_in(self, events: Iterable[Event]) -> bool:
        """Take in `events`; return whether a rank has begun or ended something, logging aside."""
        if self._attempt != self._state.status.attempt:
            self._attempt = self._state.status.attempt
            self._joined, self._num_steps = set(), 0
        has_moved = False
        for event in events:
            if event["rank"] is None or event["attempt"] != self._attempt:
                continue
            has_moved |= event["kind"] != "log"
            if (event["kind"], event["name"]) in _JOINS:
                self._joined.add(event["rank"])
        return has_moved

    def _counts(self) -> bool:
        """Return whether progress is up to the ranks now, and not to somebody else."""
        return (
            # Paused ranks move as well: they meet every few seconds (train/step/live_controls.py).
            self._state.status.phase in ("starting", "training", "paused", "finishing")
            and not self._state.failures
        )

    def _look(self, now: float) -> float | None:
        """Return the seconds allowed without progress; None if ranks have moved, or are unknown."""
        has_joined = all(row.rank in self._joined for row in self._state.status.ranks)
        if self._state.of_script:
            return self._look_at_script() if has_joined else None
        return self._look_at_ranks(now) if has_joined else self._look_at_start()

    def _look_at_start(self) -> float | None:
        """Look at ranks that are coming up, which move when one of them computes or reads.

        A wait at the gate has a timeout of its own.
        """
        self._seen = None  # pulses say nothing yet
        late = [row for row in self._state.status.ranks if row.rank not in self._joined]
        pids = [row.pid for row in late if row.pid is not None and row.phase not in _BEFORE_GATE]
        if len(pids) < len(late) or self._has_read(pids) or self._has_computed(pids):
            return None
        return allowed_s(self._timeout_s, is_slow=True)

    def _look_at_ranks(self, now: float) -> float | None:
        pulses = [read_pulse(self._run.pulse(row.rank)) for row in self._state.status.ranks]
        known = [pulse for pulse in pulses if pulse is not None and pulse.attempt == self._attempt]
        if len(known) < len(pulses):
            return None
        counts = [pulse.count for pulse in known]
        has_moved, self._seen = counts != self._seen, counts
        num_steps = max(pulse.num_steps for pulse in known)
        self._time_steps(num_steps, now)
        is_aside = num_steps == 0 or any(pulse.phase in ASIDE for pulse in known)
        if is_aside:  # a large file is read or written: no rank reports how far it is
            has_moved |= self._has_read([pulse.pid for pulse in known])
        step_s = statistics.median(self._steps) if self._steps else 0.0
        return None if has_moved else allowed_s(self._timeout_s, step_s=step_s, is_slow=is_aside)

    def _time_steps(self, num: int, now: float) -> None:
        if num > self._num_steps > 0:  # the first step is not like the others
            self._steps.append((now - self._step_at) / (num - self._num_steps))
        if num != self._num_steps:
            self._num_steps, self._step_at = num, now

    def _look_at_script(self) -> float | None:
        """Look at a script, which moves when it computes, prints or is at another line."""
        pids = [row.pid for row in self._state.status.ranks if row.pid is not None]
        seen = output_bytes(self._run, self._attempt), self._waits.places()
        has_moved, self._seen = seen != self._seen, seen
        if has_moved or self._has_computed(pids):  # the latter is not cheap
            return None
        return allowed_s(self._timeout_s, is_slow=True)

    def _has_read(self, pids: Sequence[int]) -> bool:
        """Return whether the processes have read or written since the last look."""
        before, self._io_bytes = self._io_bytes, sum(all_io_bytes(pids))
        return abs(self._io_bytes - before) > _REAL_IO_BYTES

    def _has_computed(self, pids: Sequence[int]) -> bool:
        """Return whether the processes have computed since the run stopped making progress."""
        busy_now_s = busy_s(pids)
        idle_s = _IDLE_SHARE * len(pids) * max(self._still_s, 60.0)
        if 0 <= busy_now_s - self._busy_s < idle_s:
            return False
        self._busy_s = busy_now_s
        return True
