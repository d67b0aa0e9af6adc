"""The table of event names, their fields and writers; docs are generated from it.

Its rows are in rundir/event_table/*.json. An event is one JSON object on one line::

    {"v": 1, "t": unix seconds, "mono": seconds since boot, "node": 0, "attempt": 0,
     "rank": 3 or null, "pid": 123, "kind": "start|end|mark|metric|log|error", "name": ..., fields}

A span is a `start` and an `end` of the same name by the same pid; the `end` has `duration_s`, and
`ok`: false if the span was left by an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
_FILES = ("start", "training", "machine", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """One row of the table: fields and their meanings; those in `optional` may be null.

    The `fields` of a span are those of its start.
    """

    name: str
    kind: Literal["span", "mark", "metric", "log", "error"]
    writer: str
    meaning: str
    fields: dict[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


def _rows() -> Iterator[EventSpec]:
    for name in _FILES:
        file = Path(__file__).parent / "event_table" / f"{name}.json"
        for row in json.loads(file.read_text(encoding="utf-8")):
            yield EventSpec(**row | {"optional": frozenset(row.get("optional", ()))})


EVENTS = tuple(_rows())
_BY_NAME: dict[tuple[str, str], EventSpec] = {(spec.kind, spec.name): spec for spec in EVENTS}


def spec_of(kind: str, name: str) -> EventSpec:
    """Return the row of an event as it appears in a file, where a span is `start` or `end`.

    Raises KeyError when the table has no such event.
    """
    return _BY_NAME["span" if kind in ("start", "end") else kind, name]
