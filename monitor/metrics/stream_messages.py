"""The messages of the stream, from lines of events and of logs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from monitor.metrics.indexer import table_name
from monitor.metrics.tail import Line
from monitor.runs.event_pages import masked
from rundir.events import COMMON, Event
from rundir.masking import Mask

_MOST_TEXT = 4096  # characters of a line
_NO_FIGURES = COMMON | {"step"}  # the step is told beside the figures


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its bytes as they are sent, and which log file it is of, if it is of one."""

    data: bytes
    log: str = ""


def message(event: str, data: Any, cursor: str = "", log: str = "") -> Message:
    """Return a message of the stream in the form of Server-Sent Events."""
    head = f"id: {cursor}\n" if cursor else ""
    return Message(f"{head}event: {event}\ndata: {json.dumps(data)}\n\n".encode(), log)


def is_event(name: str) -> bool:
    """Return whether a file, by its name in a cursor, is one of events."""
    return name.startswith("events/")


def content_of(name: str, line: Line, mask: Mask) -> tuple[str, Any]:
    """Return the kind and content of a line's message, secrets masked; no kind: no interest."""
    return _of_event(line, mask) if is_event(name) else _of_log(name, line, mask)


def mono_of(name: str, line: Line) -> float:
    """Return what the lines of a look are sorted by; logs come first."""
    if not is_event(name):
        return 0.0
    match = re.search(rb'"mono": ?([0-9.eE+]{1,24})', line.data[:400])
    try:
        return float(match[1]) if match else 0.0
    except ValueError:
        return 0.0


def _of_event(line: Line, mask: Mask) -> tuple[str, Any]:
    try:
        event: Event = json.loads(line.data)
        kind, name = event["kind"], event["name"]
    except (ValueError, KeyError, TypeError, RecursionError):  # torn, or no event
        return "", None
    if kind == "metric" and isinstance(name, str):
        figures = {key: value for key, value in event.items() if key not in _NO_FIGURES}
        key = table_name(event).partition("@")[2] or None
        common = {field: event.get(field) for field in ("step", "t", "attempt")}
        return "metric", {"name": name, "key": key, **common, "fields": figures}
    if kind == "log" or (kind, name) == ("mark", "limits") or len(line.data) > 16 * _MOST_TEXT:
        return "", None
    return "event", masked(event, mask)


def _of_log(name: str, line: Line, mask: Mask) -> tuple[str, Any]:
    file = name.rpartition("/")[2].removesuffix(".log")
    # Cut after masking: half a secret would not be known as one.
    text = mask.text(line.data[: 4 * _MOST_TEXT].decode("utf-8", errors="replace"))
    return "log", {"file": file, "n": line.number, "text": text[:_MOST_TEXT]}
