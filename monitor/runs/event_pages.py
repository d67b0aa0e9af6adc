"""The events of a run, from every writer, a page after the other, in order of time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside, names_inside
from monitor.runs.lines import LONGEST_BYTES, packed, read_piece, unpacked
from rundir.events import Event, parse_line
from rundir.masking import Mask
from rundir.paths import RunDir

_MOST_FILES = 2048
_BUDGET_BYTES = 8 << 20  # that one request reads: one that finds little goes on by its cursor
_MOST_PIECE_BYTES, _LEAST_PIECE_BYTES = 256 << 10, 8 << 10


@dataclass(slots=True)
class _Source:
    """One writer's file: the events read from it and not passed on yet."""

    name: str
    offset: int  # of what was passed on
    next_offset: int
    begin: int
    heads: deque[tuple[float, int, Event]] = field(default_factory=deque)  # time, offset behind it
    last_t: float = float("-inf")
    is_at_end: bool = False
    is_silent: bool = False  # it goes on without the end of a line: none waits for it

    def pop(self) -> Event:
        _, self.offset, event = self.heads.popleft()
        if not self.heads:
            self.offset = self.next_offset
        return event


class EventPager:
    """Reads the events of one run from a cursor on, within the budget."""

    def __init__(self, run: RunDir, offsets: dict[str, int]) -> None:
        self._run = run
        self._left_bytes = _BUDGET_BYTES
        names = [name for name in names_inside(run, "events") if name.endswith(".jsonl")]
        self._sources = [
            _Source(name, begin, begin, begin)
            for name in names[:_MOST_FILES]
            for begin in (offsets.get(name[:-6], 0),)
        ]
        num = max(1, len(self._sources))
        self._share_bytes = max(2 * LONGEST_BYTES, _BUDGET_BYTES // num)
        piece_bytes = _BUDGET_BYTES // (8 * num)
        self._piece_bytes = min(_MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, piece_bytes))

    @property
    def cursor(self) -> str:
        """Where the next request begins."""
        return packed({source.name[:-6]: source.offset for source in self._sources})

    @property
    def has_more(self) -> bool:
        """Whether there is more to read already."""
        return any(source.heads or not source.is_at_end for source in self._sources)

    def begin_near_the_end(self) -> None:
        """Leave out all but the last piece of each file."""
        for source in self._sources:
            with suppress(NotFoundError), inside(self._run, "events", source.name) as file:
                size = os.fstat(file.fileno()).st_size
                begin = max(0, size - self._piece_bytes)
                source.offset = source.next_offset = source.begin = begin

    def events(self) -> Iterator[Event]:
        """Yield events in order of time, until the files or the budget end."""
        for source in self._sources:
            self._fill(source)
        while all(file.heads or file.is_at_end or file.is_silent for file in self._sources):
            waiting = [source for source in self._sources if source.heads]
            if not waiting:
                return
            first = min(waiting, key=lambda source: source.heads[0][0])
            yield first.pop()
            if not first.heads:
                self._fill(first)

    def _fill(self, source: _Source) -> None:
        """Read the next events of a file, if the budget lasts."""
        begin = source.next_offset
        most = begin + self._share_bytes
        while not (source.heads or source.is_at_end) and source.next_offset < most:
            if self._left_bytes <= 0 and source.next_offset > source.begin:
                return  # of each file something is read, or no request would get on
            try:
                with inside(self._run, "events", source.name) as file:
                    piece = read_piece(file, source.next_offset, self._piece_bytes)
            except NotFoundError:  # removed meanwhile
                source.is_at_end = True
                return
            self._left_bytes -= max(1, piece.next_offset - source.next_offset)
            source.is_at_end = piece.next_offset == source.next_offset
            source.next_offset = piece.next_offset
            for end, line in piece.lines:
                event = parse_line(line)
                if event is not None and _is_number(event.get("t")):
                    source.last_t = max(source.last_t, event["t"])
                    source.heads.append((source.last_t, end, event))
            if not source.heads:
                source.offset = source.next_offset
        source.is_silent = not (source.heads or source.is_at_end)


def events_page(
    run: RunDir,
    mask: Mask,
    *,
    after: str = "",
    limit: int = 1000,
    last: int = 0,
    kind: str = "",
    name: str = "",
) -> dict[str, Any]:
    """Return up to `limit` events after the cursor, or the `last` ones, and the next cursor.

    "more" tells that asking again at once finds more.
    """
    reader = EventPager(run, unpacked(after) if after else {})
    if last:
        reader.begin_near_the_end()
    page: deque[Event] = deque(maxlen=last or None)
    for event in reader.events():
        if (not kind or event["kind"] == kind) and (not name or event["name"] == name):
            page.append(event)
        if not last and len(page) >= limit:
            break
    events = [masked(event, mask) for event in page]
    return {"events": events, "cursor": reader.cursor, "more": reader.has_more}


def last_events(run: RunDir, writer: str) -> list[Event]:
    """Return the last events of one writer, oldest first; none without its file."""
    with suppress(NotFoundError), inside(run, "events", f"{writer}.jsonl") as file:
        size = os.fstat(file.fileno()).st_size
        piece = read_piece(file, max(0, size - _MOST_PIECE_BYTES), _MOST_PIECE_BYTES)
        return [event for _, line in piece.lines if (event := parse_line(line)) is not None]
    return []


def masked(event: Event, mask: Mask) -> Event:
    """Return the event with secrets masked in its texts; a measurement has none."""
    if event["kind"] == "metric":
        return event
    return {
        key: mask.text(value) if isinstance(value, str) and key not in ("kind", "name") else value
        for key, value in event.items()
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
