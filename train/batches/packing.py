"""Packing of several samples into one row, so that next to nothing is computed for padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapreplace

_ALIKE = 0.95  # of the longest row in a batch: padding of a shorter one is computed all the same


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Divide samples into as few rows of `capacity` tokens as best-fit decreasing finds.

    Returns the samples' positions in `lengths`, row by row, the fullest rows first; the same for
    the same lengths. A sample longer than `capacity` is in a row of its own. (Best-fit decreasing
    needs at most 11/9 of the fewest rows possible, plus one: Johnson 1973.)
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for position in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = bisect_left(free, (lengths[position], -1))
        if place == len(free):
            left, row = max(0, capacity - lengths[position]), len(rows)
            rows.append([])
        else:
            left, row = free.pop(place)
            left -= lengths[position]
        rows[row].append(position)
        insort(free, (left, row))
    rows.sort(key=lambda row: -sum(lengths[index] for index in row))
    return rows


def balanced_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack samples into no more rows than `pack`, of equal length where the samples allow it.

    The tokens that a row lacks to the longest one beside it are computed for nothing.
    """
    full = pack(lengths, capacity)
    rows = balanced_shares(lengths, len(full))
    if any(sum(lengths[index] for index in row) > capacity for row in rows):
        return full
    return sorted(rows, key=lambda row: -sum(lengths[index] for index in row))


def balanced_shares(lengths: Sequence[int], num_shares: int) -> list[list[int]]:
    """Divide samples into shares of as equal numbers of tokens as possible: positions in `lengths`.

    The longest come first, each to the share with the fewest tokens. (At most 4/3 - 1/3m of the
    optimum: Graham 1969.)
    """
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    heap = [(0, share) for share in range(num_shares)]
    for position in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        tokens, share = heap[0]
        shares[share].append(position)
        heapreplace(heap, (tokens + lengths[position], share))
    return shares


def alike_batches(row_tokens: Sequence[int], size: int) -> list[list[int]]:
    """Group rows of similar length, up to `size` of them: positions in `row_tokens`, descending.

    A shorter row is computed by itself rather than padded.
    """
    batches: list[list[int]] = []
    for position, tokens in enumerate(row_tokens):
        fits = bool(batches) and len(batches[-1]) < size
        if fits and tokens >= _ALIKE * row_tokens[batches[-1][0]]:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches
