"""Micro-batches: samples as the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from train.data.dataset import Sample

IGNORE = -100  # a label that takes no part in the loss; torch's and transformers' convention


class Work(NamedTuple):
    """What a step is made of, over all ranks and micro-batches; padding left out."""

    num_labels: float
    num_inputs: float
    squared_lengths: float  # the sum of length² over samples

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(*(one + more for one, more in zip(self, other, strict=True)))


NO_WORK = Work(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: `input_ids` and `labels` (rows, tokens), padded on the right.

    No attention mask is needed: under a causal mask no real token sees the padding after it.
    `position_ids`, of the same shape, start from 0 with every sample where rows have several.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    num_input_tokens: int
    position_ids: torch.Tensor | None = None
    squared_lengths: int = 0  # the sum of length² over its samples

    @property
    def work(self) -> Work:
        """What there is to compute."""
        return Work(self.num_label_tokens, self.num_input_tokens, self.squared_lengths)

    @property
    def num_label_tokens(self) -> int:
        """Labels that take part in the loss; the first token of a sample has no prediction."""
        return int((self.labels[:, 1:] != IGNORE).sum())

    def arguments(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor | None, ...]:
        """What `SummedLoss` takes, on `device`: labels are looked at here, where nothing waits."""
        rows, tokens = (self.labels[:, 1:] != IGNORE).nonzero(as_tuple=True)
        where, targets = rows * self.labels.shape[1] + tokens, self.labels[rows, tokens + 1]
        made = (self.input_ids, self.position_ids, where, targets)
        # MPS would copy from memory that is free again by then (pytorch#139550, #189690).
        is_cuda = torch.device(device).type == "cuda"
        return tuple(None if one is None else one.to(device, non_blocking=is_cuda) for one in made)


def collate(samples: Sequence[Sample]) -> Batch:
    """Each sample in a row; prompts and padding get no loss.

    No samples give one token without a label: a rank with nothing left still runs a forward and
    backward, so that collectives match, and adds exactly 0.
    """
    batch = collate_rows([[sample] for sample in samples])
    return replace(batch, position_ids=None)


def collate_rows(rows: Sequence[Sequence[Sample]]) -> Batch:
    """Rows of several samples each, which the positions keep apart; as `collate` else."""
    if not rows:
        nothing = torch.zeros((1, 2), dtype=torch.long)
        return Batch(nothing, torch.full_like(nothing, IGNORE), 0, torch.arange(2)[None])
    length = max(sum(len(tokens) for tokens, _ in row) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    labels = np.full((len(rows), length), IGNORE, dtype=np.int64)
    positions = np.zeros((len(rows), length), dtype=np.int64)
    num_tokens = squared_lengths = 0
    for i, row in enumerate(rows):
        begin = 0
        for tokens, ranges in row:
            end = begin + len(tokens)
            ids[i, begin:end] = tokens
            for first, last in ranges:
                labels[i, begin + first : begin + last] = tokens[first:last]
            # What its first token would be predicted from is another sample's last.
            labels[i, begin] = IGNORE
            positions[i, begin:end] = np.arange(len(tokens))
            squared_lengths += len(tokens) ** 2
            begin = end
        positions[i, begin:] = np.arange(length - begin)  # padding is one more
        num_tokens += begin
    made = (torch.from_numpy(one) for one in (ids, labels, positions))
    input_ids, as_labels, position_ids = made
    return Batch(input_ids, as_labels, num_tokens, position_ids, squared_lengths)
