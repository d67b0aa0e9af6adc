"""Micro-batches: samples as the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from train.data.dataset import Sample
from train.model.on_device import on_device

IGNORE = -100  # a label that the loss ignores; torch's and transformers' convention
_BOUND_MULTIPLE = 256  # tokens


class Work(NamedTuple):
    """The amount of work in a step, over all ranks and micro-batches, without padding."""

    num_labels: float
    num_inputs: float
    squared_lengths: float  # the sum of length² over samples

    def plus(self, other: Work) -> Work:
        """Return the sum of both."""
        return Work(*(value + more for value, more in zip(self, other, strict=True)))


NO_WORK = Work(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: `input_ids` and `labels` (rows, tokens), padded on the right.

    No attention mask is needed: under a causal mask no real token sees the padding after it.
    `position_ids`, of the same shape, restart at 0 with every sample if rows hold several.
    `cu_seq_lens`, (samples + 1,), int32, holds where samples begin in the flattened rows, and their
    end; padding is a sample too. `max_length` is the length of the longest, or a little more.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    num_input_tokens: int
    position_ids: torch.Tensor | None = None
    squared_lengths: int = 0  # the sum of length² over its samples
    cu_seq_lens: torch.Tensor | None = None
    max_length: int = 0

    @property
    def work(self) -> Work:
        """The amount of work in this micro-batch."""
        return Work(self.num_label_tokens, self.num_input_tokens, self.squared_lengths)

    @property
    def num_label_tokens(self) -> int:
        """The number of labels in the loss; the first token of a sample has no prediction."""
        return int((self.labels[:, 1:] != IGNORE).sum())

    def arguments(self, device: torch.device | str = "cpu") -> tuple[Any, ...]:
        """Return `SummedLoss`'s inputs on `device`; labels are read here, where nothing waits."""
        rows, tokens = (self.labels[:, 1:] != IGNORE).nonzero(as_tuple=True)
        where, targets = rows * self.labels.shape[1] + tokens, self.labels[rows, tokens + 1]
        made = (self.input_ids, self.position_ids, where, targets, self.cu_seq_lens)
        starts = None if self.cu_seq_lens is None else self.cu_seq_lens[:-1].tolist()
        return (*on_device(made, device), self.max_length, starts)


def collate(samples: Sequence[Sample], multiple: int = 1, most: int = 0) -> Batch:
    """Return a batch with each sample in a row, padded as by `collate_rows`; prompts have no loss.

    Without samples it has only tokens without a label: a rank with nothing left still runs a
    forward and backward pass, so that collectives match, and adds exactly 0.
    """
    batch = collate_rows([[sample] for sample in samples], multiple, most)
    return replace(batch, position_ids=None)


def collate_rows(rows: Sequence[Sequence[Sample]], multiple: int = 1, most: int = 0) -> Batch:
    """Return a batch of rows of several samples each, kept apart by positions; see `collate`.

    Rows are padded to a multiple of `multiple` tokens, but not beyond `most`.
    """
    if not rows:
        nothing = torch.zeros((1, 2), dtype=torch.long)
        unlabelled = torch.full_like(nothing, IGNORE)
        return Batch(nothing, unlabelled, 0, torch.arange(2)[None], 0, _int32([0, 2]), 2)
    longest = max(sum(len(tokens) for tokens, _ in row) for row in rows)
    length = max(longest, min(most, -(-longest // multiple) * multiple))
    ids = np.zeros((len(rows), length), dtype=np.int64)
    labels = np.full((len(rows), length), IGNORE, dtype=np.int64)
    positions = np.zeros((len(rows), length), dtype=np.int64)
    num_tokens = squared_lengths = 0
    borders = []
    for i, row in enumerate(rows):
        begin = 0
        for tokens, ranges in row:
            end = begin + len(tokens)
            ids[i, begin:end] = tokens
            for first, last in ranges:
                labels[i, begin + first : begin + last] = tokens[first:last]
            # Its first token would be predicted from another sample's last one.
            labels[i, begin] = IGNORE
            positions[i, begin:end] = np.arange(len(tokens))
            borders.append(i * length + begin)
            squared_lengths += len(tokens) ** 2
            begin = end
        positions[i, begin:] = np.arange(length - begin)  # padding counts as one more sample
        borders += [i * length + begin] if begin < length else []
        num_tokens += begin
    made = (torch.from_numpy(column) for column in (ids, labels, positions))
    input_ids, as_labels, position_ids = made
    cu_seq_lens = _int32([*borders, len(rows) * length])
    longest_sample = int(cu_seq_lens.diff().max())
    # Rounded up: torch.compile prepares for each new one, and to the kernel it is only a bound.
    max_length = -(-longest_sample // _BOUND_MULTIPLE) * _BOUND_MULTIPLE
    return Batch(
        input_ids, as_labels, num_tokens, position_ids, squared_lengths, cu_seq_lens, max_length
    )


def loss_of(
    summed_loss: Callable[..., torch.Tensor], samples: Sequence[Sample], device: torch.device
) -> tuple[float, int]:
    """Return the summed loss of samples that are computed at once, and the number of labels."""
    batch = collate(samples)
    return float(summed_loss(*batch.arguments(device))), batch.num_label_tokens


def _int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
