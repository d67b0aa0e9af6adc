"""One row of the table of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["span", "mark", "metric", "log", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """One row of the table: fields and their meanings; those in `optional` may be null."""

    name: str
    kind: Kind
    writer: str
    meaning: str
    fields: dict[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


def span(name: str, writer: str, meaning: str, **fields: str) -> EventSpec:
    """Return the row of a span, whose `fields` are those of its start."""
    return EventSpec(name=name, kind="span", writer=writer, meaning=meaning, fields=fields)
