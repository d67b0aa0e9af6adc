"""Ranks that wait for others: since when, for whom, and whether those can still come.

Waiting is a fact, and no fault: a rank may evaluate or write a checkpoint while the others wait. It
is a stall if nobody that they could wait for moves any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from machine.processes.activity import letter_of, output_bytes
from rundir.control import is_asked
from rundir.paths import RunDir
from rundir.pulse import read_pulse
from state.hang_limit import SLOW, allowed_s
from state.observed_rank import STOPPED, ObservedRank, waits_text

_WAITING_S, _WAITING_STEPS = 30.0, 5  # a wait is shown then: whichever is longer
_LOOKS = 3  # in a row that must agree
_NUM_PAUSES, _LEAST_PAUSES = 500, 3  # between collectives, to tell a usual step
_PASSES_ON = {"send", "recv", "isend", "irecv", "wait"}  # which belong together, or may


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Ranks that have waited for `waited_s` for what cannot come, or does not move."""

    waited_s: float
    limit_s: float


class Waits:
    """The waits of one attempt's ranks; `timeout_s` is `launch.hang_timeout_s`."""

    def __init__(self, run: RunDir, timeout_s: float) -> None:
        self._run = run
        self._waiting_s = min(_WAITING_S, timeout_s / 10) if timeout_s > 0 else _WAITING_S
        self._timeout_s = timeout_s
        self._ranks: dict[int, ObservedRank] = {}
        self._num_agree = 0
        self._stretch = 1
        self._told: dict[int, float | None] = {}  # since when each rank waited, when it was told
        self._pauses: deque[float] = deque(maxlen=_NUM_PAUSES)
        self._counts: object = None
        self._pause_s = 0.0
        self._output, self._silent_s = 0, 0.0  # bytes printed, and since when no more
        self._answers: list[int] = []  # when each rank has last written where it is
        self.text: str | None = None  # who has waited long, and for whom
        self.is_known = False  # whether the ranks show what they wait for

    def look(
        self, pids: dict[int, int], attempt: int, now: float, ran_s: float, step_s: float = 0.0
    ) -> Stall | None:
        """Look at all ranks, with their `pids`; return a stall, each only once.

        `ran_s` is the time since the last look; `step_s` the usual duration of a step if known.
        """
        ranks = self._seen(pids, attempt, now)
        self.is_known = ranks is not None
        if ranks is None:
            self.reset()
            return None
        self._time_pauses(ranks, ran_s)
        self._time_output(attempt, ran_s)
        for rank in ranks:
            rank.time_wait(ran_s)
        waited_s = max((rank.waited_s for rank in ranks if rank.waits), default=0.0)
        if waited_s <= min(self._waiting_s, _LOOKS):
            self._num_agree, self.text = 0, None
            return None
        step_s = max(step_s, _usual(self._pauses))
        has_answered = self._has_answered(pids)
        for rank in ranks:
            rank.look_for_movement(ran_s, has_answered=has_answered)
        if waited_s < max(self._waiting_s, _WAITING_STEPS * step_s):
            self.text = None
            return None
        self.text = waits_text(ranks)
        limit_s = self._stretch * allowed_s(self._timeout_s, step_s=step_s)
        return self._judge(ranks, waited_s, limit_s)

    def _has_answered(self, ranks: Iterable[int]) -> bool:
        """Return whether ranks have been asked for their stacks, now or since the last look."""
        before, self._answers = self._answers, [_changed_at(self._run, rank) for rank in ranks]
        return is_asked(self._run, "trace") or self._answers != before

    def reset(self) -> None:
        """Forget all waits: ranks are unknown, or progress is not up to them."""
        self._ranks, self._num_agree, self.text = {}, 0, None

    @property
    def has_told(self) -> bool:
        """True from a stall until it is over."""
        return bool(self._told)

    def is_over(self) -> bool:
        """Return, once, whether a rank of the last stall goes on; later limits are then longer."""
        if not self._has_gone_on():
            return False
        self._told = {}
        self._stretch *= 2
        return True

    def has_gone_on(self, attempt: int, now: float) -> bool:
        """Look again at `now`, whether a rank of the last stall has gone on."""
        self._seen({rank: observed.pid for rank, observed in self._ranks.items()}, attempt, now)
        return self._has_gone_on()

    def places(self) -> list[object]:
        """Return since when the stack of each rank has stood still."""
        return [rank.pulse.main.still_mono for rank in self._ranks.values()]

    def _has_gone_on(self) -> bool:
        return any(
            not observed.is_gone and observed.pulse.main.waits_mono != since
            for rank, since in self._told.items()
            if (observed := self._ranks.get(rank)) is not None
        )

    def _seen(self, pids: dict[int, int], attempt: int, now: float) -> list[ObservedRank] | None:
        """Return all ranks as they are now; None if a watchdog has not shown what its rank does.

        One that is stopped never will, and needs not: the kernel tells.
        """
        for rank, pid in pids.items():
            pulse, letter = read_pulse(self._run.pulse(rank)), letter_of(pid)
            before = self._ranks.get(rank)
            if pulse is None and before is not None:  # it was just being written
                pulse = before.pulse
            is_there = pulse is not None and pulse.main.still_mono is not None
            is_there |= letter in STOPPED
            if pulse is None or pulse.attempt != attempt or not (is_there or pulse.left):
                return None
            observed = self._ranks.setdefault(rank, ObservedRank(rank, pid, pulse))
            observed.pid, observed.pulse, observed.letter = pid, pulse, letter
            observed.deaf_s = pulse.deaf_s(now)
        return [self._ranks[rank] for rank in pids]

    def _time_pauses(self, ranks: Iterable[ObservedRank], ran_s: float) -> None:
        counts = [rank.pulse.groups for rank in ranks]
        self._pause_s += ran_s
        if counts != self._counts:
            if self._counts is not None and not self._told:
                self._pauses.append(self._pause_s)
            self._counts, self._pause_s = counts, 0.0

    def _time_output(self, attempt: int, ran_s: float) -> None:
        before, self._output = self._output, output_bytes(self._run, attempt)
        self._silent_s = self._silent_s + ran_s if self._output == before else 0.0

    def _judge(self, ranks: list[ObservedRank], waited_s: float, limit_s: float) -> Stall | None:
        can_come = [rank for rank in ranks if not _never_comes(rank, self._waiting_s)]
        others = [rank for rank in can_come if not rank.waits]
        at_once = False
        if not others:
            waiting = [rank for rank in ranks if rank.waits]
            at_once = len(can_come) < len(ranks) or _call_differently(waiting)
        self._num_agree = self._num_agree + 1 if at_once else 0
        is_still = all(rank.idle_s >= min(limit_s, waited_s) - _LOOKS for rank in others)
        endless_s = SLOW * limit_s  # for a rank that computes in one function, and none prints
        is_endless = waited_s >= endless_s and all(
            min(rank.stays_s, self._silent_s) >= endless_s - 2 * _LOOKS for rank in others
        )
        is_told_at_once = self._num_agree >= _LOOKS
        is_stall = is_told_at_once or is_endless or (waited_s >= limit_s and is_still)
        if not is_stall or self._told:
            return None
        self._told = {rank.rank: rank.pulse.main.waits_mono for rank in ranks if rank.waits}
        if is_told_at_once or is_endless:
            limit_s = self._waiting_s if is_told_at_once else endless_s
        return Stall(waited_s=round(waited_s, 1), limit_s=round(limit_s, 1))


def _usual(pauses: Iterable[float]) -> float:
    """Return the duration of a usual step by the pauses between collectives; 0.0 if unknown.

    Many collectives may follow each other at the end of a step, and an evaluation is a pause that
    is no step. So it is the pause that divides the time: half of it was spent in longer ones.
    """
    longest_first = sorted(pauses, reverse=True)
    rest_s, found_s = sum(longest_first) / 2, 0.0
    for found_s in longest_first:
        rest_s -= found_s
        if rest_s <= 0:
            break
    num_alike = sum(rank >= found_s / 2 for rank in longest_first)
    return found_s if num_alike >= _LEAST_PAUSES else 0.0


def _changed_at(run: RunDir, rank: int) -> int:
    """Return when a rank has written its flight record; 0 if there is none."""
    try:
        return run.flight_record(rank).stat().st_mtime_ns
    except OSError:
        return 0


def _never_comes(rank: ObservedRank, idle_s: float) -> bool:
    """Return whether a rank cannot come any more, unless somebody outside the run lets it."""
    is_locked = rank.pulse.main.in_lock and rank.idle_s >= max(idle_s, _LOOKS)
    return rank.is_gone or rank.is_stopped or (is_locked and not rank.waits)


def _call_differently(waiting: list[ObservedRank]) -> bool:
    """Return whether ranks that all wait are in different collectives, so that none can end."""
    counts = [rank.pulse.groups for rank in waiting]
    if any(rank.pulse.has_device for rank in waiting):  # these spin, and call ahead
        return counts[1:] != counts[:-1]
    calls = {rank.pulse.main.waits_in for rank in waiting}
    is_still = all(rank.idle_s >= _LOOKS for rank in waiting)  # nothing is being sent
    return is_still and (counts[1:] != counts[:-1] or (len(calls) > 1 and not calls & _PASSES_ON))
