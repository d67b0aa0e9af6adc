"""The table of event names, their fields and writers; docs are generated from it.

An event is one JSON object on one line::

    {"v": 1, "t": unix seconds, "mono": seconds since boot, "node": 0, "attempt": 0,
     "rank": 3 or null, "pid": 123, "kind": "start|end|mark|metric|log|error", "name": ..., fields}

A span is a `start` and an `end` of the same name by the same pid; the `end` has `duration_s`, and
`ok`: false if the span was left by an exception.
"""

from __future__ import annotations

from rundir.event_table import machine, outcome, start, training
from rundir.event_table.spec import EventSpec

VERSION = 1

PHASES = (
    "preparing",  # model and data are being prepared; no rank is running
    "starting",  # ranks start, pass the gate, join their process group
    "training",
    "paused",  # between two steps, until it is told to go on
    "finishing",  # last evaluation, checkpoint and export
    "stopping",  # a stop was requested
    "done",
    "failed",
    "interrupted",
)
RANK_PHASES = ("spawn", "waiting", "importing", "loading", "ready", "training", "done", "failed")

EVENTS: tuple[EventSpec, ...] = (
    *start.EVENTS,
    *training.EVENTS,
    *machine.EVENTS,
    *outcome.EVENTS,
)
_BY_NAME: dict[tuple[str, str], EventSpec] = {(spec.kind, spec.name): spec for spec in EVENTS}


def spec_of(kind: str, name: str) -> EventSpec:
    """Return the row of an event as it appears in a file, where a span is `start` or `end`.

    Raises KeyError when the table has no such event.
    """
    return _BY_NAME["span" if kind in ("start", "end") else kind, name]
