"""The rows of one table that are not in the index yet, as columns of doubles."""

from __future__ import annotations

import array
import math
import struct
from bisect import bisect_left
from typing import Any, TypeAlias

from monitor.metrics.store import IndexState, MetricTable, Store, X
from rundir.events import COMMON, Event

Column: TypeAlias = "array.array[float]"

# A NaN of our own: the event has a null there, or not that field. An event's own NaN is another.
MISSING_BITS = 0x7FF8_0000_A112_10C0
_MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # as in events
_MOST = 2.0**53  # beyond it doubles are no whole numbers
_LARGEST = 1 << 1023  # that a double can be
# The time is a figure of what has steps, and `index` says which GPU a row belongs to.
_NO_FIGURES = set(COMMON - {"t"}) | {"index"}


class PendingRows:
    """Rows that are added to a table; nothing is written before `flush`."""

    def __init__(self, store: Store, state: IndexState, table: MetricTable) -> None:
        self.table = table
        self._store = store
        self._state = state
        self._columns = {name: array.array("d") for name in table.crcs or [X]}
        self._known = _NO_FIGURES | {table.by} | self._columns.keys()

    @property
    def last_x(self) -> float | None:
        """The step, or time, of the last row."""
        steps = self._columns[X]
        return steps[-1] if steps else self.table.last_x

    def add(self, event: Event) -> None:
        """Add one row, at the event's step or time; an event without is left out."""
        x = finite(event.get(self.table.by))
        if x is None:
            return
        if not self._known.issuperset(event):  # fields that are new, or no numbers until now
            for name in event.keys() - self._known:
                if _is_number(event[name]):
                    self._columns[name] = _missing(len(self._columns[X]))
                    self._known.add(name)
        figures = event | {X: x}
        for name, column in self._columns.items():
            value = figures.get(name)
            column.append(value if type(value) is float else _number(value))

    def cut(self, x: float) -> bool:
        """Remove the rows at `x` and after it; return whether there were any."""
        if self.last_x is None or self.last_x < x:
            return False
        if self.table.last_x is not None and self.table.last_x >= x:
            self._take_back()
        keep = bisect_left(self._columns[X], x)
        for column in self._columns.values():
            del column[keep:]
        return True

    def _take_back(self) -> None:
        """Have the rows of the index written anew: who reads it now still has those files."""
        for name, column in self._columns.items():
            before = _missing(self.table.rows)
            if name in self.table.crcs:
                before = array.array("d", self._store.values(self.table, name))
            self._columns[name] = before + column
        self.table.number = self._state.new_number()
        self.table.rows, self.table.last_x, self.table.crcs = 0, None, {}

    def flush(self) -> None:
        """Write the rows."""
        for name, column in self._columns.items():
            before = _missing(0 if name in self.table.crcs else self.table.rows)
            self._store.append(self.table, name, (before + column).tobytes())
        self.table.last_x = self.last_x
        self.table.rows += len(self._columns[X])


def _missing(length: int) -> Column:
    """Return a column without a value."""
    return array.array("d", [_MISSING]) * length


def finite(value: Any) -> float | None:
    """Return a step, or a time, as a double; None for what is neither."""
    if type(value) not in (int, float) or not abs(value) < _MOST:
        return None
    return float(value)


def _is_number(value: Any) -> bool:
    """Return whether a field holds a number, or the name of one that JSON does not have."""
    return type(value) in (int, float, bool) or (type(value) is str and value in _NOT_FINITE)


def _number(value: Any) -> float:
    """Return the value of a field as a double; the missing one for what is no number."""
    if type(value) is int:
        return float(value) if abs(value) < _LARGEST else (math.inf if value > 0 else -math.inf)
    if type(value) is float or type(value) is bool:
        return float(value)
    return _NOT_FINITE.get(value, _MISSING) if type(value) is str else _MISSING
