"""Which samples make up a step, and the micro-batches that a rank makes of its share.

Of a file of n samples with weight w an epoch takes round(w·n), the next epoch those that follow:
its own permutations one behind the other, so that with w = 0.3 each sample has had its turn before
any has a second. A pure function of (seed, step): resuming needs no state, and the number of ranks
changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from rundir.config import RunConfig
from rundir.prepared import PreparedPart
from train.data.dataset import Sample, SampleFile
from train.step.batch import Batch, collate, collate_rows
from train.step.packing import batched, even, shared
from train.step.permutation import Permutation, permutation


class MixedOrder:
    """As `Order`, of several files whose samples are numbered one after the other."""

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


class Samples(Protocol):
    """What a feed takes samples from."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def length(self, index: int) -> int:
        """How many tokens a sample has."""


class Steps(Protocol):
    """What says which samples make up a step."""

    def step_indices(self, step: int) -> Sequence[int]:
        """Indices of the samples of `step` (from 0), the same on all ranks."""


class Order:
    """Which samples make up a step: a pure function of (seed, step), so resuming needs no state.

    Samples are drawn without replacement through each epoch; a step may span two epochs.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._permutation: Permutation = np.empty(0, dtype=np.int64)

    def step_indices(self, step: int) -> list[int]:
        """Indices of the samples of `step` (from 0), which all ranks share."""
        first = step * self._batch_size
        return [self._index(position) for position in range(first, first + self._batch_size)]

    def _index(self, position: int) -> int:
        epoch, within = divmod(position, self._num_samples)
        if epoch != self._epoch:
            self._permutation = permutation(self._num_samples, self._seed, epoch)
            self._epoch = epoch
        return int(self._permutation[within])


def order_of(samples: Samples, config: RunConfig) -> Steps:
    """Which of prepared samples make up a step."""
    batch_size, seed = config.train.global_batch_size, config.train.seed
    if isinstance(samples, SampleFile) and samples.parts:
        return MixedOrder(samples.parts, batch_size, seed)
    return Order(len(samples), batch_size, seed)


class Feed:
    """One rank's micro-batches: those of all ranks are the step's samples, each of them once.

    Ranks get as many tokens as each other, as near as whole samples allow: whoever has less waits.
    Every rank has as many micro-batches, as they exchange gradients; the last ones may be empty.
    """

    def __init__(
        self,
        samples: Samples,
        config: RunConfig,
        rank: int,
        world_size: int,
        order: Steps | None = None,
    ) -> None:
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._size = config.train.micro_batch_size
        self._row_tokens = config.data.max_seq_length
        self._is_packed = config.data.packing
        self._order = order_of(samples, config) if order is None else order

    def step(self, step: int) -> list[Batch]:
        """The micro-batches of `step` (from 0)."""
        hands = self.hands(step)
        most = max(1, *map(len, hands))  # a step that is streamed may be left with no sample
        mine = hands[self._rank]
        return [self._batch(rows) for rows in (*mine, *[[]] * (most - len(mine)))]

    def hands(self, step: int) -> list[list[list[list[int]]]]:
        """For each rank, for each of its micro-batches, for each row, its samples."""
        indices = self._order.step_indices(step)
        lengths = [self._samples.length(index) for index in indices]
        return [
            self._micro_batches([indices[i] for i in share], [lengths[i] for i in share])
            for share in shared(lengths, self._world_size)
        ]

    def _micro_batches(self, indices: list[int], lengths: list[int]) -> list[list[list[int]]]:
        """A rank's share, whose lengths descend."""
        rows = [[i] for i in range(len(indices))]
        if self._is_packed:
            rows = even(lengths, self._row_tokens)
        batches = batched([sum(lengths[i] for i in row) for row in rows], self._size)
        return [[[indices[i] for i in rows[at]] for at in batch] for batch in batches]

    def _batch(self, rows: list[list[int]]) -> Batch:
        samples = [[self._samples[index] for index in row] for row in rows]
        return collate_rows(samples) if self._is_packed else collate([one for (one,) in samples])
