"""Ranks that are persistently slower than the others, from what each says of its own time."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rundir.events import Event
from state.gpu_use import GpuUse

_SHARE = 0.25  # of a step, by which its own work must be longer than the others'
_NUM_REPORTS = 5  # in a row, before it is worth a warning
_LEAST_S = 10.0  # that these must span, for the same reason
_OWN = {"time_data_s": "data", "time_compute_s": "compute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """A rank in one report: the part it is slow in, its seconds a step, and the others'."""

    rank: int
    pid: int
    part: str
    own_s: float
    others_s: float
    mono: float
    gpu_faults: tuple[str, ...] = ()


@dataclass(slots=True)
class Stragglers:
    """The slow rank of an attempt, if there is one. `add` takes the events `train.rank`."""

    warned_of: Event | None = None  # with which it was time to warn
    _step: int = -1
    _of_step: dict[int, Event] = field(default_factory=dict)
    _in_a_row: list[_Slow] = field(default_factory=list)
    _all: list[_Slow] = field(default_factory=list)
    _num_reports: int = 0

    def add(self, event: Event, num_ranks: int, gpus: Mapping[int, GpuUse]) -> None:
        """Take in what a rank says; of a step, only what all ranks say counts."""
        if event["step"] != self._step:
            self._step, self._of_step = event["step"], {}
        self._of_step[event["rank"]] = event
        if len(self._of_step) < num_ranks or num_ranks < 2:  # noqa: PLR2004 - nobody to wait for it
            return
        self._num_reports += 1
        slow = _slowest(self._of_step, gpus)
        before = self._in_a_row[-1].rank if self._in_a_row else None
        if slow is None or before not in (None, slow.rank):
            self._in_a_row = []
        if slow is None:
            return
        self._in_a_row.append(slow)
        self._all.append(slow)
        span_s = slow.mono - self._in_a_row[0].mono
        is_due = len(self._in_a_row) >= _NUM_REPORTS and span_s >= _LEAST_S
        if is_due and self.warned_of is None:
            self.warned_of = event

    def warning(self) -> str:
        """Return a warning of the rank that is slow now: what it spends the time on."""
        last = self._in_a_row[-1]
        part = _usual_part(self._in_a_row)
        details = _details([slow for slow in self._in_a_row if slow.part == part])
        return (
            f"airlock: rank {last.rank} is slower than the others, which wait for it: {details}\n"
            f"  → {_advice(last, part)}"
        )

    def over_the_run(self) -> str:
        """Return which rank was slow over the run, and in what; "" if none was for long."""
        if self.warned_of is None:
            return ""
        (rank, num), *_ = Counter(slow.rank for slow in self._all).most_common(1)
        of_rank = [slow for slow in self._all if slow.rank == rank]
        details = _details([slow for slow in of_rank if slow.part == _usual_part(of_rank)])
        return f"rank {rank}: {details}; in {num} of {self._num_reports} reports"


def _slowest(events: Mapping[int, Event], gpus: Mapping[int, GpuUse]) -> _Slow | None:
    """Return the rank whose own work is by far the longest of all, or None."""
    own_s = {rank: sum(float(event[key]) for key in _OWN) for rank, event in events.items()}
    rank = max(own_s, key=lambda number: own_s[number])
    rest = [event for other, event in events.items() if other != rank]
    others_s = statistics.median(sum(float(event[key]) for key in _OWN) for event in rest)
    step_s = max(own_s[rank2] + float(event["time_wait_s"]) for rank2, event in events.items())
    if own_s[rank] - others_s <= _SHARE * step_s:
        return None
    event = events[rank]
    excess_s = {
        key: float(event[key]) - statistics.median(float(event[key]) for event in rest)
        for key in _OWN
    }
    key = max(excess_s, key=lambda part: excess_s[part])
    is_one_each = len(gpus) == len(events)  # then GPUs are numbered as ranks are
    gpu = gpus[sorted(gpus)[rank]] if is_one_each else None
    return _Slow(
        rank=rank,
        pid=event["pid"],
        part=_OWN[key],
        own_s=float(event[key]),
        others_s=float(event[key]) - excess_s[key],
        mono=float(event["mono"]),
        gpu_faults=tuple(gpu.faults_now) if gpu and key == "time_compute_s" else (),
    )


def _usual_part(reports: list[_Slow]) -> str:
    (part, _), *_ = Counter(slow.part for slow in reports).most_common(1)
    return part


def _details(reports: list[_Slow]) -> str:
    own_s = statistics.median(slow.own_s for slow in reports)
    others_s = statistics.median(slow.others_s for slow in reports)
    faults = sorted({fault for slow in reports for fault in slow.gpu_faults})
    clocks = f" (the clocks of its GPU are lowered: {', '.join(faults)})" if faults else ""
    return (
        f"{reports[-1].part} takes {own_s:.3g} s of each step, and {others_s:.3g} s there{clocks}"
    )


def _advice(last: _Slow, part: str) -> str:
    if last.gpu_faults:
        return "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE   # its cooling, its power supply?"
    if part == "data":
        return f"ps -o pid,stat,wchan:20,args -p {last.pid}   # which disk or network does it read?"
    return f"top -H -p {last.pid}   # what else takes its cores or its GPU (nvidia-smi)?"
