"""Columns of the index as curves of few points: the least and the greatest value of each bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.metrics.numbers import MISSING, MISSING_BITS
from monitor.metrics.store import CHUNK_ROWS, BrokenError, PartRow, Store, X

_BATCH_CHUNKS = 64  # read at once: half a megabyte of each column
_MOST_BAD = 1000  # steps told of at which a value is no number

Doubles = npt.NDArray[np.float64]


@dataclass(slots=True)
class Curve:
    """One series: for each bucket where it ends, and what is in it."""

    x: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    greatest: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    bad_x: list[float] = field(default_factory=list)  # where the value is NaN

    def told(self, by: str) -> dict[str, list[Any]]:
        """Return it for JSON: numbers that JSON does not have are their names."""
        is_step = by == "step"
        columns: dict[str, list[Any]] = {
            "steps" if is_step else "t": _whole(self.x) if is_step else self.x,
            "min": _named(self.least),
            "max": _named(self.greatest),
            "mean": _named(self.mean),
            "last": _named(self.last),
        }
        if self.bad_x:
            columns["nan"] = _whole(self.bad_x) if is_step else self.bad_x
        return columns


def _whole(values: Sequence[float]) -> list[Any]:
    return [int(value) if value.is_integer() else value for value in values]


def _named(values: list[float]) -> list[Any]:
    if all(map(math.isfinite, values)):
        return values
    return [value if math.isfinite(value) else str(value) for value in values]


def rows_between(store: Store, part: PartRow, low: float | None, high: float | None) -> range:
    """Return the rows whose step, or time, is from `low` to `high`."""
    first = 0 if low is None else _first_row(store, part, low)
    end = part.rows if high is None else _first_row(store, part, math.nextafter(high, math.inf))
    return range(first, max(first, end))


def _first_row(store: Store, part: PartRow, x: float) -> int:
    """Return the first row at `x` or after it, by bisection; clocks are taken to go forward."""
    low, high = 0, -(-part.rows // CHUNK_ROWS)  # the first chunk that ends at x or after it
    while low < high:
        middle = (low + high) // 2
        if _column(store, part, X, middle, middle)[-1] < x:
            low = middle + 1
        else:
            high = middle
    if low * CHUNK_ROWS >= part.rows:
        return part.rows
    inside = int(np.searchsorted(_column(store, part, X, low, low), x))
    return min(low * CHUNK_ROWS + inside, part.rows)


def _column(store: Store, part: PartRow, field: str, first: int, last: int) -> Doubles:
    """Return the values of the chunks from `first` to `last`. Raises BrokenError."""
    chunks = store.chunks(part.id, field, first, last)
    values = []
    for number in range(first, last + 1):
        rows = min(CHUNK_ROWS, part.rows - number * CHUNK_ROWS)
        column = np.frombuffer(chunks.get(number, b""), dtype=np.float64)[:rows]
        if len(column) < rows:
            if field == X:
                raise BrokenError(f"chunk {number} of {part.name} is not there")
            column = np.concatenate([column, np.full(rows - len(column), MISSING)])
        values.append(column)
    return np.concatenate(values)


def curves(
    store: Store, part: PartRow, fields: Sequence[str], rows: range, points: int
) -> tuple[dict[str, Curve], bool]:
    """Return the curves of some fields of a part, and whether they have every row of `rows`."""
    is_exact = len(rows) <= points
    num = min(len(rows), points)
    edges = rows.start + np.arange(num + 1, dtype=np.int64) * len(rows) // max(num, 1)
    buckets = {name: _Buckets(num) for name in fields}
    step = _BATCH_CHUNKS
    for first in range(rows.start // CHUNK_ROWS, -(-rows.stop // CHUNK_ROWS) if num else 0, step):
        last = min(first + step, -(-rows.stop // CHUNK_ROWS)) - 1
        start = first * CHUNK_ROWS
        cut = slice(max(rows.start - start, 0), rows.stop - start)
        x = _column(store, part, X, first, last)[cut]
        for name, bucket in buckets.items():
            bucket.add(start + cut.start, edges, x, _column(store, part, name, first, last)[cut])
    return {name: bucket.curve() for name, bucket in buckets.items()}, is_exact


class _Buckets:
    """The buckets of one series, filled a batch of rows after the other."""

    def __init__(self, num: int) -> None:
        self._least, self._greatest, self._last, self._x = np.full((4, num), np.nan)
        self._sum, self._num = np.zeros(num), np.zeros(num, dtype=np.int64)
        self._is_there = np.zeros(num, dtype=bool)
        self._bad: list[float] = []

    def add(self, row: int, edges: npt.NDArray[np.int64], x: Doubles, values: Doubles) -> None:
        """Add the rows from `row` on; `edges` are the first rows of the buckets."""
        if not len(values):
            return
        first = int(np.searchsorted(edges, row, "right")) - 1
        end = int(np.searchsorted(edges, row + len(values), "left"))
        starts = np.maximum(edges[first:end] - row, 0)
        at = slice(first, end)
        is_missing = np.ascontiguousarray(values).view(np.uint64) == MISSING_BITS
        is_nan = np.isnan(values)
        self._least[at] = np.fmin(self._least[at], np.fmin.reduceat(values, starts))
        self._greatest[at] = np.fmax(self._greatest[at], np.fmax.reduceat(values, starts))
        with np.errstate(invalid="ignore", over="ignore"):
            self._sum[at] += np.add.reduceat(np.where(is_nan, 0.0, values), starts)
        self._num[at] += np.add.reduceat((~is_nan).astype(np.int64), starts)
        last = np.maximum.reduceat(np.where(is_missing, -1, np.arange(len(values))), starts)
        has = last >= 0
        here = np.arange(first, end)[has]
        self._last[here], self._x[here] = values[last[has]], x[last[has]]
        self._is_there[here] = True
        if len(self._bad) < _MOST_BAD:
            self._bad += x[is_nan & ~is_missing][: _MOST_BAD - len(self._bad)].tolist()

    def curve(self) -> Curve:
        """Return the buckets in which there is a value."""
        there = self._is_there
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sum[there] / self._num[there]
        return Curve(
            x=self._x[there].tolist(),
            least=self._least[there].tolist(),
            greatest=self._greatest[there].tolist(),
            mean=mean.tolist(),
            last=self._last[there].tolist(),
            bad_x=self._bad,
        )
