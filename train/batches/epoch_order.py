"""The order of an epoch, in little memory: a pure function of the seed and the epoch's number.

From a file of n samples with weight w an epoch takes round(w·n), and the next epoch takes those
that follow in the file's own sequence of permutations: with w = 0.3 each sample has had its turn
before any has a second, also if the seed changes meanwhile: a permutation that has begun is kept
to its end. The number of ranks changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from rundir.prepared import PreparedPart
from train.batches.course import Course

_LISTED = 1 << 20  # samples: a longer list takes more memory than the rest of a rank's data
_ROUNDS = 8  # 4 are enough to be pseudo-random (Luby and Rackoff 1988) with good round functions
# From the position within the epoch to the sample.
Permutation: TypeAlias = "np.ndarray | _Computed"


def permutation(num_samples: int, seed: int, epoch: int, *stream: int) -> Permutation:
    """Return the order of `epoch`; each `stream` has its own."""
    generator = np.random.default_rng([seed, epoch, *stream])
    if num_samples <= _LISTED:
        return generator.permutation(num_samples)
    return _Computed(num_samples, generator)


class _Computed:
    """A permutation that is computed on demand, by a Feistel network.

    It permutes the numbers of an even number of bits; a result outside the samples is permuted
    again until it falls inside (cycle walking: Black and Rogaway 2002).
    """

    def __init__(self, num_samples: int, generator: np.random.Generator) -> None:
        self._num_samples = num_samples
        self._half_bits = ((num_samples - 1).bit_length() + 1) // 2
        self._mask = (1 << self._half_bits) - 1
        self._keys = [int(key) for key in generator.integers(0, 1 << 63, _ROUNDS)]

    def __getitem__(self, position: int) -> int:
        while True:
            left, right = position >> self._half_bits, position & self._mask
            for key in self._keys:
                left, right = right, left ^ (_mixed(right ^ key) & self._mask)
            position = left << self._half_bits | right
            if position < self._num_samples:
                return position


def _mixed(value: int) -> int:
    """Return 64 bits, each of which depends on all of `value` (the finaliser of SplitMix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31


class Order:
    """The samples of each step: a pure function of the step and the run's course.

    Samples are drawn without replacement within each epoch; a step may span two epochs.
    """

    def __init__(self, course: Course) -> None:
        self.course = course
        self._epoch = -1
        self._permutation: Permutation = np.empty(0, dtype=np.int64)

    def step_indices(self, step: int) -> list[int]:
        """Return the indices of the samples of `step` (from 0), the same on all ranks."""
        return [self._index(position) for position in self.course.rows(step)]

    def _index(self, position: int) -> int:
        num_rows = self.course.num_rows
        epoch, within = divmod(position, num_rows)
        if epoch != self._epoch:
            self._permutation = permutation(num_rows, self.course.seed(epoch), epoch)
            self._epoch = epoch
        return int(self._permutation[within])


class MixedOrder(Order):
    """The samples of each step, for several files numbered consecutively; else like `Order`."""

    def __init__(self, parts: Sequence[PreparedPart], course: Course) -> None:
        super().__init__(course)
        self._parts = parts
        self._draw_ends = list(accumulate(part.num_drawn for part in parts))
        self._ends = list(accumulate(part.num_samples for part in parts))
        self._known: dict[int, tuple[tuple[int, int], Permutation]] = {}

    def _index(self, position: int) -> int:
        epoch, within = divmod(position, self._draw_ends[-1])
        slot = int(self._order(0, self._draw_ends[-1], epoch, epoch)[within])
        number = bisect_right(self._draw_ends, slot)
        part = self._parts[number]
        drawn = slot - (self._draw_ends[number] - part.num_drawn)
        turn, place = divmod(epoch * part.num_drawn + drawn, part.num_samples)
        before = self._ends[number] - part.num_samples
        begun_in = turn * part.num_samples // part.num_drawn
        return before + int(self._order(number + 1, part.num_samples, turn, begun_in)[place])

    def _order(self, stream: int, length: int, turn: int, epoch: int) -> Permutation:
        """Return a permutation; the last two of each stream are kept, as an epoch may need both."""
        key = 2 * stream + turn % 2
        known = self._known.get(key)
        if known is None or known[0] != (stream, turn):
            order = permutation(length, self.course.seed(epoch), turn, stream)
            known = self._known[key] = (stream, turn), order
        return known[1]
