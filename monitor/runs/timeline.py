"""How the ranks of a run came up: for each the phases of its start, with their times."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from monitor.errors import NotFoundError
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

_kept: OrderedDict[tuple[str, int, int], Phases] = OrderedDict()
_lock = threading.Lock()


def timeline(run: RunDir, rank: int, attempt: int) -> Phases:
    """Return the phases of a rank's start in that attempt, in order; an open one has no end."""
    key = (str(run.path), rank, attempt)
    with _lock:
        if key in _kept:
            return _kept[key]
    found, is_whole = _read(run, rank, attempt)
    if is_whole:  # nothing will be added
        with _lock:
            _kept[key] = found
            if len(_kept) > _MOST_KEPT:
                _kept.popitem(last=False)
    return found


def _read(run: RunDir, rank: int, attempt: int) -> tuple[Phases, bool]:
    phases: Phases = []
    open_: dict[str, dict[str, Any]] = {}
    with suppress(NotFoundError), inside(run, "events", f"rank{rank}.jsonl") as file:
        at = 0
        while at < _BUDGET_BYTES:
            piece = read_piece(file, at, _PIECE_BYTES)
            if piece.next_offset == at:
                return phases, False
            at = piece.next_offset
            for _, line in piece.lines:
                event = parse_line(line)
                if event is None or event.get("attempt") != attempt:
                    continue
                if (event["kind"], event["name"]) == ("metric", "train"):
                    return phases, True
                _add(event, phases, open_)
    return phases, bool(phases)


def _add(event: dict[str, Any], phases: Phases, open_: dict[str, dict[str, Any]]) -> None:
    phase = _PHASES.get(str(event["name"]))
    if phase is None:
        return
    if event["kind"] == "start":
        open_[phase] = {"phase": phase, "start_t": event.get("t"), "end_t": None}
        phases.append(open_[phase])
    elif event["kind"] == "end" and phase in open_:
        open_.pop(phase)["end_t"] = event.get("t")
