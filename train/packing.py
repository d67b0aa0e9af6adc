"""Several samples in one row, so that next to nothing is computed for padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Divide samples into as few rows of `capacity` tokens as best-fit decreasing finds.

    Returns the samples' positions in `lengths`, row by row, the fullest rows first; the same for
    the same lengths. A sample longer than `capacity` is in a row of its own. (Best-fit decreasing
    needs at most 11/9 of the fewest rows possible, and one: Johnson 1973.)
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for position in sorted(range(len(lengths)), key=lambda one: (-lengths[one], one)):
        found = bisect_left(free, (lengths[position], -1))
        if found == len(free):
            left, row = max(0, capacity - lengths[position]), len(rows)
            rows.append([])
        else:
            left, row = free.pop(found)
            left -= lengths[position]
        rows[row].append(position)
        insort(free, (left, row))
    rows.sort(key=lambda row: -sum(lengths[one] for one in row))
    return rows


def dealt(rows: Sequence[T], rank: int, world_size: int) -> list[T]:
    """The rows that `rank` gets, of rows sorted by size: to and fro, so that all get as much."""
    mine = []
    for first in range(0, len(rows), world_size):
        is_back = (first // world_size) % 2 == 1
        at = first + (world_size - 1 - rank if is_back else rank)
        if at < len(rows):
            mine.append(rows[at])
    return mine
