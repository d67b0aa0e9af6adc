"""How the ranks of a run came up: for each the phases of its start, with their times."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside
from monitor.runs.lines import read_piece
from rundir.events import parse_line
from rundir.paths import RunDir

Phases = list[dict[str, Any]]
# The spans of a rank's start, with what they are called here.
_PHASES = {
    "lock.wait": "waiting",
    "import": "import",
    "model.load": "load",
    "all_loaded.wait": "all_loaded",
    "pg.init": "process_group",
    "ddp.wrap": "ddp",
}
_PIECE_BYTES = 64 << 10
_BUDGET_BYTES = 32 << 20  # of one rank's events, searched for the begin of the attempt
_MOST_KEPT = 4096

# What a rank tells of its steps: the start is over. Only rank 0 writes the first of them.
_STEPS = ("train", "train.rank")


@dataclass(slots=True)
class _Start:
    """A rank's start as far as it was read, up to `offset` of its events."""

    phases: Phases = field(default_factory=list)
    offset: int = 0
    is_over: bool = False  # nothing will be added
    lock: threading.Lock = field(default_factory=threading.Lock)


@lru_cache(_MOST_KEPT)
def _start(_run: RunDir, _rank: int, _attempt: int) -> _Start:
    return _Start()


def timeline(run: RunDir, rank: int, attempt: int) -> Phases:
    """Return the phases of a rank's start in that attempt, in order; an open one has no end.

    No event is read twice: a rank that never trains, as one of a script, may write on for days.
    """
    start = _start(run, rank, attempt)
    with start.lock:
        if not start.is_over:
            _read_on(run, rank, attempt, start)
        return [dict(phase) for phase in start.phases]


def _read_on(run: RunDir, rank: int, attempt: int, start: _Start) -> None:
    """Add what has been written since."""
    with suppress(NotFoundError), inside(run, "events", f"rank{rank}.jsonl") as file:
        while start.offset < _BUDGET_BYTES:
            piece = read_piece(file, start.offset, _PIECE_BYTES)
            if piece.next_offset == start.offset:
                return
            start.offset = piece.next_offset
            for _, line in piece.lines:
                event = parse_line(line)
                if event is None or event.get("attempt") != attempt:
                    continue
                if event["kind"] == "metric" and event["name"] in _STEPS:
                    start.is_over = True
                    return
                _add(event, start.phases)
        start.is_over = True


def _add(event: dict[str, Any], phases: Phases) -> None:
    phase = _PHASES.get(str(event["name"]))
    if phase is None:
        return
    if event["kind"] == "start":
        phases.append({"phase": phase, "start_t": event.get("t"), "end_t": None})
    elif event["kind"] == "end":
        for earlier in reversed(phases):
            if earlier["phase"] == phase and earlier["end_t"] is None:
                earlier["end_t"] = event.get("t")
                break
