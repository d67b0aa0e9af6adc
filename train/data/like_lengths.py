"""Samples of like length together, so that little is computed for padding."""

from __future__ import annotations

from collections.abc import Sequence


def like_lengths(lengths: Sequence[int], *, cost: int, most: int = 0) -> list[list[int]]:
    """Divide descending `lengths` into batches with the least to compute: positions, in order.

    A batch computes its longest times its number of samples, and `cost` tokens besides; with
    `most`, no batch of several samples has more tokens than that, padding included.
    """
    least, begins = [0], [0]  # of the first n samples; where the last batch of them begins
    for end in range(1, len(lengths) + 1):
        best, at = None, end - 1
        for begin in range(end - 1, -1, -1):
            tokens = (end - begin) * lengths[begin]
            if begin < end - 1 and (tokens > most > 0 or (best and tokens > best)):
                break  # both grow with the batch
            if best is None or least[begin] + tokens + cost < best:
                best, at = least[begin] + tokens + cost, begin
        assert best is not None
        least.append(best)
        begins.append(at)
    batches, end = [], len(lengths)
    while end:
        batches.append(list(range(begins[end], end)))
        end = begins[end]
    return batches[::-1]
