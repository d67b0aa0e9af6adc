"""A column of the index as a curve of few points: the range, mean and last value of each bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.metrics.pending_rows import MISSING_BITS

_BATCH_ROWS = 65_536  # reduced at once, so that what is computed on the way takes little memory
_MOST_NAN = 1000  # steps that are named because their value is no number

Doubles = npt.NDArray[np.float64]


@dataclass(slots=True)
class Curve:
    """One series: for each bucket with a value where it ends, and what is in it."""

    x: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    greatest: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    nan_x: list[float] = field(default_factory=list)

    def add(self, x: Doubles, values: Doubles, starts: npt.NDArray[np.int64]) -> None:
        """Add buckets; `starts` are their first rows."""
        is_missing = values.view(np.uint64) == MISSING_BITS
        is_nan = np.isnan(values)
        last = np.maximum.reduceat(np.where(is_missing, -1, np.arange(len(values))), starts)
        has_value = last >= 0
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            total = np.add.reduceat(np.where(is_nan, 0.0, values), starts)
            mean = total / np.add.reduceat(~is_nan, starts, dtype=np.int64)
        self.x += x[last[has_value]].tolist()
        self.least += np.fmin.reduceat(values, starts)[has_value].tolist()
        self.greatest += np.fmax.reduceat(values, starts)[has_value].tolist()
        self.mean += mean[has_value].tolist()
        self.last += values[last[has_value]].tolist()
        self.nan_x += x[is_nan & ~is_missing][: _MOST_NAN - len(self.nan_x)].tolist()

    def as_json(self, by: str) -> dict[str, list[Any]]:
        """Return it for JSON: numbers that JSON does not have are their names."""
        is_step = by == "step"
        columns: dict[str, list[Any]] = {
            "steps" if is_step else "t": _whole(self.x) if is_step else self.x,
            "min": _named(self.least),
            "max": _named(self.greatest),
            "mean": _named(self.mean),
            "last": _named(self.last),
        }
        if self.nan_x:
            columns["nan"] = _whole(self.nan_x) if is_step else self.nan_x
        return columns


def _whole(values: Sequence[float]) -> list[Any]:
    return [int(value) if value.is_integer() else value for value in values]


def _named(values: list[float]) -> list[Any]:
    if all(map(math.isfinite, values)):
        return values
    return [value if math.isfinite(value) else str(value) for value in values]


def curve(x: Doubles, values: Doubles, points: int) -> Curve:
    """Return the values, each at its step or time, in at most `points` buckets of equal size."""
    drawn = Curve()
    num = min(len(x), points)
    num_at_once = max(1, _BATCH_ROWS * num // max(len(x), 1))
    for first in range(0, num, num_at_once):
        edges = np.arange(first, min(first + num_at_once, num) + 1) * len(x) // num
        rows = slice(edges[0], edges[-1])
        drawn.add(x[rows], values[rows], edges[:-1] - edges[0])
    return drawn
