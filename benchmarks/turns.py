"""Programs that take turns of a few seconds, so that a drift in machine speed affects all alike.

Whole runs one after another are minutes apart, and over that time the speed of a shared machine
changes by more than the effect to be measured. So all programs are started, and all but one are
suspended (SIGSTOP).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.tree import Tree

_POLL_S = 0.1
# Student's t, 97.5 %, by degrees of freedom; for those in between the next lower one is used.
_T_975 = {
    1: 12.71,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    11: 2.201,
    15: 2.131,
    19: 2.093,
    23: 2.069,
    29: 2.045,
    39: 2.023,
}


class Stepping(Protocol):
    """A program that does its work in steps."""

    tree: Tree

    def ends(self) -> list[float]:
        """Return the end time of each step so far, in seconds on the monotonic clock."""


@dataclass(slots=True)
class Turn:
    """The time during which a program ran, in seconds on the monotonic clock."""

    begin: float
    end: float


@dataclass(slots=True)
class Clock:
    """A program's own time, which passes only during its turns."""

    turns: list[Turn] = field(default_factory=list)

    def at(self, mono: Sequence[float]) -> np.ndarray:
        """Return the seconds of its own time that had passed by each moment."""
        moments = np.asarray(mono, dtype=float)
        spent = [np.clip(moments - turn.begin, 0, turn.end - turn.begin) for turn in self.turns]
        total: np.ndarray = np.sum(spent, axis=0)
        return total


def begin(program: Stepping, num_steps: int, timeout_s: float) -> Clock:
    """Let a just-started program run alone for `num_steps` steps, then suspend it.

    Returns its clock. Raises RuntimeError when the program ends or hangs.
    """
    clock, started = Clock(), time.monotonic()
    wait_for(program, num_steps, timeout_s)
    _pause(program, clock, started)
    return clock


def take_turns(
    programs: Mapping[str, Stepping],
    clocks: Mapping[str, Clock],
    *,
    num_turns: int,
    turn_s: float,
    timeout_s: float,
) -> None:
    """Give each suspended program `num_turns` turns, and one more that is not counted.

    (The extra one lets the last step of each turn end.) They are left suspended. Raises
    RuntimeError when one ends or hangs.
    """
    names = list(programs)
    for turn in range(num_turns + 1):
        for name in names if turn % 2 else names[::-1]:
            program, num_done = programs[name], len(programs[name].ends())
            begun = time.monotonic()
            program.tree.go_on()
            time.sleep(turn_s)
            if turn == num_turns:
                wait_for(program, num_done + 1, timeout_s)
            elif program.tree.has_ended():
                raise RuntimeError(f"{name} has ended before its turns have")
            _pause(program, clocks[name], begun)


def _pause(program: Stepping, clock: Clock, begun: float) -> None:
    program.tree.pause()
    clock.turns.append(Turn(begun, time.monotonic()))


def wait_for(program: Stepping, num_steps: int, timeout_s: float) -> None:
    """Wait for `num_steps` steps to be done. Raises RuntimeError when the program ends or hangs."""
    deadline = time.monotonic() + timeout_s
    while len(program.ends()) < num_steps:
        if program.tree.has_ended() or time.monotonic() > deadline:
            raise RuntimeError(f"{len(program.ends())} of {num_steps} steps are done")
        time.sleep(_POLL_S)


def speeds(clock: Clock, ends: Sequence[float], work: Sequence[float]) -> list[float]:
    """Return the work per second in each turn but the first and the last.

    `ends` is when each step ended and `work` what it did; a step that spans two turns counts for
    both in proportion to the time it had in each.
    """
    time_s, done = clock.at(ends), np.cumsum(work[: len(ends)])
    counted = clock.turns[1:-1]
    edges = clock.at([counted[0].begin, *(turn.end for turn in counted)])
    return [float(one) for one in np.diff(np.interp(edges, time_s, done)) / np.diff(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Our speed divided by a peer's, turn by turn: mean and 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
        """Compare by Student's t on the logarithms; with one pair there is no interval."""
        logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
        mean, half = statistics.fmean(logs), 0.0
        if len(logs) > 1:
            student = _T_975[max(one for one in _T_975 if one <= len(logs) - 1)]
            half = student * statistics.stdev(logs) / math.sqrt(len(logs))
        low, middle, high = (round(math.exp(mean + part), 4) for part in (-half, 0.0, half))
        return cls(mean=middle, low=low, high=high)
