"""The rows of one part while they are added: the last chunk in memory, the others in the index."""

from __future__ import annotations

import array
from bisect import bisect_left

from monitor.metrics.numbers import is_number, missing, number, position
from monitor.metrics.store import CHUNK_ROWS, BrokenError, Column, PartRow, Store, X
from rundir.events import COMMON, Event

# The time is a figure of what has steps, and `index` says which GPU a row belongs to.
_NO_FIGURES = (COMMON - {"t"}) | {"index"}


class Part:
    """A part to which events are added; nothing is written before `flush`, except full chunks."""

    def __init__(self, store: Store, row: PartRow) -> None:
        self.row = row
        self._store = store
        self._chunk = row.rows // CHUNK_ROWS
        self._x: Column = array.array("d")
        self._columns: dict[str, Column] = {}
        self._waited_for: tuple[str, ...] = ()  # fields that were null until now
        self._width = -1  # keys of the last event; another number may mean new fields
        if row.rows % CHUNK_ROWS:
            self._load(self._chunk, row.rows % CHUNK_ROWS)

    def _load(self, chunk: int, rows: int) -> None:
        """Take a chunk back into memory, with its first `rows`."""
        columns = {}
        for field in [X, *self._store.fields(self.row.id)]:
            data = self._store.chunks(self.row.id, field, chunk, chunk).get(chunk)
            column = missing(rows)
            if data is not None:
                column = array.array("d")
                column.frombytes(data)
            columns[field] = column[:rows]
            columns[field].extend(missing(rows - len(columns[field])))
        self._x = columns.pop(X)
        if len(self._x) != rows:
            raise BrokenError(f"chunk {chunk} of {self.row.name} is not there")
        self._columns, self._chunk, self._width = columns, chunk, -1

    @property
    def last(self) -> float | None:
        """The step, or time, of the last row."""
        if not self._x and self._chunk:
            self._load(self._chunk - 1, CHUNK_ROWS)
        return self._x[-1] if self._x else None

    def add(self, event: Event) -> None:
        """Add one row, at the event's step or time; an event without is left out."""
        x = position(event.get(self.row.by))
        if x is None:
            return
        if len(self._x) == CHUNK_ROWS:
            self._close()
        get = event.get
        if len(event) != self._width or any(
            get(waiting) is not None for waiting in self._waited_for
        ):
            self._add_fields(event)
        self._x.append(x)
        for field, column in self._columns.items():
            value = get(field)
            column.append(value if type(value) is float else number(value))

    def _add_fields(self, event: Event) -> None:
        """Begin the columns of fields that are new."""
        new = event.keys() - self._columns.keys() - _NO_FIGURES - {self.row.by}
        for field in new:
            if is_number(event[field]):
                self._columns[field] = missing(len(self._x))
        self._waited_for = tuple(new - self._columns.keys())
        self._width = len(event)

    def cut(self, x: float) -> bool:
        """Remove the rows at `x` and after it; return whether there were any."""
        has_cut = False
        while (last := self.last) is not None and last >= x:
            keep = bisect_left(self._x, x)
            for column in (self._x, *self._columns.values()):
                del column[keep:]
            has_cut = True
        if has_cut:
            self._store.drop_chunks(self.row.id, self._chunk + 1)
        return has_cut

    def _close(self) -> None:
        self._write()
        self._chunk += 1
        for column in (self._x, *self._columns.values()):
            del column[:]

    def _write(self) -> None:
        self._store.put_chunk(self.row.id, self._chunk, {X: self._x, **self._columns})

    def flush(self) -> None:
        """Write what is in memory."""
        if self._x:
            self._write()
        else:
            self._store.drop_chunks(self.row.id, self._chunk)
        self._store.put_rows(self.row.id, self._chunk * CHUNK_ROWS + len(self._x))
