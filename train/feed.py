"""Which samples make up a step, and the micro-batches that a rank makes of its share."""

from __future__ import annotations

import numpy as np

from rundir.config import RunConfig
from train.batch import Batch, collate, collate_rows
from train.data import SampleFile
from train.packing import dealt, pack


class Order:
    """Which samples make up a step: a pure function of (seed, step), so resuming needs no state.

    Samples are drawn without replacement through each epoch; a step may span two epochs.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def step_indices(self, step: int) -> list[int]:
        """Indices of the samples of `step` (from 0), which all ranks share."""
        first = step * self._batch_size
        return [self._index(position) for position in range(first, first + self._batch_size)]

    def _index(self, position: int) -> int:
        epoch, within = divmod(position, self._num_samples)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._permutation = generator.permutation(self._num_samples)
            self._epoch = epoch
        return int(self._permutation[within])


class Feed:
    """One rank's micro-batches: those of all ranks are the step's samples, each of them once.

    Every rank has as many, as they exchange gradients; the last ones may be empty.
    """

    def __init__(self, samples: SampleFile, config: RunConfig, rank: int, world_size: int) -> None:
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._size = config.train.micro_batch_size
        self._row_tokens = config.data.max_seq_length
        self._is_packed = config.data.packing
        self._order = Order(len(samples), config.train.global_batch_size, config.train.seed)

    def step(self, step: int) -> list[Batch]:
        """The micro-batches of `step` (from 0)."""
        indices = self._order.step_indices(step)
        rows = [[index] for index in indices]
        if self._is_packed:
            lengths = [self._samples.length(index) for index in indices]
            rows = [[indices[i] for i in row] for row in pack(lengths, self._row_tokens)]
        mine = dealt(rows, self._rank, self._world_size)
        num_batches = -(-len(rows) // (self._world_size * self._size))
        return [
            self._batch(mine[i * self._size : (i + 1) * self._size]) for i in range(num_batches)
        ]

    def _batch(self, rows: list[list[int]]) -> Batch:
        samples = [[self._samples[index] for index in row] for row in rows]
        return collate_rows(samples) if self._is_packed else collate([one for (one,) in samples])
