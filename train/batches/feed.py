"""The micro-batches that a rank makes of its share of a step's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rundir.config import RunConfig
from train.batches.batch import Batch, collate, collate_rows
from train.batches.course import Course, course_of
from train.batches.epoch_order import MixedOrder, Order
from train.batches.packing import alike_batches, balanced_rows, balanced_shares
from train.data.dataset import Sample, SampleFile
from train.data.like_lengths import like_lengths

_BATCH_TOKENS = 256  # a further batch reads all weights, which takes as long as so many tokens
Row = list[int]  # indices of the samples that are packed into one row
MicroBatch = list[Row]
Share = list[MicroBatch]  # one rank's part of a step


class Samples(Protocol):
    """The source of a feed's samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def length(self, index: int) -> int:
        """Return the number of tokens in a sample."""


class StepOrder(Protocol):
    """The choice of the samples of each step."""

    @property
    def course(self) -> Course:
        """The positions of each step's rows."""

    def step_indices(self, step: int) -> Sequence[int]:
        """Return the indices of the samples of `step` (from 0), the same on all ranks."""


def order_of(samples: Samples, course: Course) -> StepOrder:
    """Return the order in which prepared samples make up steps."""
    if isinstance(samples, SampleFile) and samples.parts:
        return MixedOrder(samples.parts, course)
    return Order(course)


class Feed:
    """One rank's micro-batches; those of all ranks hold each of the step's samples once.

    Ranks get the same number of tokens, as nearly as whole samples allow: a rank with less has to
    wait. Every rank has the same number of micro-batches, as they exchange gradients; the last ones
    may be empty.
    """

    def __init__(
        self,
        samples: Samples,
        config: RunConfig,
        rank: int,
        world_size: int,
        order: StepOrder | None = None,
        row_multiple: int = 1,
    ) -> None:
        """Prepare the feed; rows are padded to a multiple of `row_multiple` tokens.

        Without an `order` it is that of a run from its beginning.
        """
        self.samples, self._rank, self._world_size = samples, rank, world_size
        self._size = config.train.micro_batch_size
        self._row_tokens = config.data.max_seq_length
        self._by_length = config.data.packing == "by_length"
        self._is_packed = config.data.may_share_rows
        self._row_multiple = row_multiple
        if order is None:
            order = order_of(samples, course_of(config, len(samples)))
        self._order = order
        self._prepared: tuple[int, list[Batch]] | None = None

    @property
    def course(self) -> Course:
        """The positions of each step's rows."""
        return self._order.course

    def prepare(self, step: int) -> None:
        """Collate the micro-batches of `step` (from 0) before they are asked for."""
        self._prepared = step, self._collated(step)

    def step(self, step: int) -> list[Batch]:
        """Return the micro-batches of `step` (from 0)."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == step:
            return prepared[1]
        return self._collated(step)

    def _collated(self, step: int) -> list[Batch]:
        shares = self.shares(step)
        most = max(1, *map(len, shares))  # a streamed step may have no samples left
        mine = shares[self._rank]
        return [self._batch(rows) for rows in (*mine, *[[]] * (most - len(mine)))]

    def shares(self, step: int) -> list[Share]:
        """Return the share of each rank, by the indices of its samples."""
        indices = self._order.step_indices(step)
        lengths = [self.samples.length(index) for index in indices]
        return [
            self._micro_batches([indices[i] for i in share], [lengths[i] for i in share])
            for share in balanced_shares(lengths, self._world_size)
        ]

    def tokens(self, step: int) -> tuple[int, int, int]:
        """Return (tokens, those computed with padding, micro-batches) of `step`, over all ranks."""
        shares, length = self.shares(step), self.samples.length
        batches = [[list(map(length, row)) for row in batch] for share in shares for batch in share]
        computed = sum(self._padded(max(map(sum, batch))) * len(batch) for batch in batches)
        return sum(map(sum, (row for batch in batches for row in batch))), computed, len(batches)

    def _micro_batches(self, indices: list[int], lengths: list[int]) -> Share:
        """Return the micro-batches of samples whose lengths descend."""
        if self._by_length:
            most = self._size * self._row_tokens  # as many as packed rows would have
            cost = min(_BATCH_TOKENS, self._row_tokens // 16)
            padded = [self._padded(length) for length in lengths]
            batches = like_lengths(padded, cost=cost, most=most)
            return [[[indices[at]] for at in batch] for batch in batches]
        rows = [[i] for i in range(len(indices))]
        if self._is_packed:
            rows = balanced_rows(lengths, self._row_tokens)
        batches = alike_batches([sum(lengths[i] for i in row) for row in rows], self._size)
        return [[[indices[i] for i in rows[at]] for at in batch] for batch in batches]

    def _padded(self, length: int) -> int:
        multiple = self._row_multiple
        return max(length, min(self._row_tokens, -(-length // multiple) * multiple))

    def _batch(self, rows: MicroBatch) -> Batch:
        samples = [[self.samples[index] for index in row] for row in rows]
        padded = self._row_multiple, self._row_tokens
        if self._is_packed:
            return collate_rows(samples, *padded)
        return collate([sample for (sample,) in samples], *padded)
