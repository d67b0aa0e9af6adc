"""Which samples of several files make up a step: each file has its share of every epoch.

Of a file of n samples with weight w an epoch takes round(w·n), the next epoch those that follow:
its own permutations one behind the other, so that with w = 0.3 each sample has had its turn before
any has a second. A pure function of (seed, step): resuming needs no state, and the number of ranks
changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from rundir.prepared import PreparedPart
from train.permutation import Permutation, permutation


class MixedOrder:
    """As `train.feed.Order`, of several files whose samples are numbered one after the other."""

    def __init__(self, parts: Sequence[PreparedPart], batch_size: int, seed: int) -> None:
        self._parts, self._batch_size, self._seed = parts, batch_size, seed
        self._draw_ends = list(accumulate(part.num_drawn for part in parts))
        self._ends = list(accumulate(part.num_samples for part in parts))
        self._known: dict[int, tuple[tuple[int, int], Permutation]] = {}

    def step_indices(self, step: int) -> list[int]:
        """Indices of the samples of `step` (from 0), which all ranks share."""
        first = step * self._batch_size
        return [self._index(position) for position in range(first, first + self._batch_size)]

    def _index(self, position: int) -> int:
        epoch, within = divmod(position, self._draw_ends[-1])
        slot = int(self._order(0, self._draw_ends[-1], epoch)[within])
        number = bisect_right(self._draw_ends, slot)
        part = self._parts[number]
        drawn = slot - (self._draw_ends[number] - part.num_drawn)
        turn, place = divmod(epoch * part.num_drawn + drawn, part.num_samples)
        before = self._ends[number] - part.num_samples
        return before + int(self._order(number + 1, part.num_samples, turn)[place])

    def _order(self, stream: int, length: int, turn: int) -> Permutation:
        """A permutation; of each stream the last two are kept, as an epoch may need both."""
        key = 2 * stream + turn % 2
        about, found = self._known.get(key, ((-1, -1), ()))
        if about != (stream, turn):
            found = permutation(length, self._seed, turn, stream)
            self._known[key] = (stream, turn), found
        return found
