"""Tokenised samples, memory-mapped, and which of them a rank takes at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from rundir.prepared import PreparedData

IGNORE = -100  # a label that takes no part in the loss; torch's and transformers' convention
Sample = tuple[np.ndarray, int]  # token ids, and how many of them are the prompt's


class SampleFile:
    """Random access to one Arrow file; the pages are shared by every rank of the node."""

    def __init__(self, prepared: PreparedData) -> None:
        """Map `prepared.path`. Raises OSError when it is gone."""
        file = pa.ipc.open_file(pa.memory_map(prepared.path))
        # As many batches as the file was written in: joining them would copy them into memory.
        self._batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])
        ids = [batch.column("input_ids") for batch in self._batches]
        self._tokens = [column.values.to_numpy() for column in ids]
        self._offsets = [column.offsets.to_numpy() for column in ids]

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._batches else 0

    def __getitem__(self, index: int) -> Sample:
        batch, row = self._place(index)
        start, end = self._offsets[batch][row], self._offsets[batch][row + 1]
        num_prompt_tokens = self._batches[batch].column("num_prompt_tokens")[row].as_py()
        return self._tokens[batch][start:end], num_prompt_tokens

    def texts(self, index: int) -> tuple[str, str]:
        """(prompt, response) of a sample, as they stand in the data."""
        batch, row = self._place(index)
        columns = (self._batches[batch].column(name) for name in ("prompt", "response"))
        prompt, response = (column[row].as_py() for column in columns)
        return prompt, response

    def _place(self, index: int) -> tuple[int, int]:
        """(batch, row in it) of a sample. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        batch = int(np.searchsorted(self._ends, index, side="right"))
        return batch, index - int(self._ends[batch]) + self._batches[batch].num_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: `input_ids` and `labels` (samples, tokens), padded on the right.

    No attention mask is needed: under a causal mask no real token sees the padding after it.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    num_input_tokens: int

    @property
    def num_label_tokens(self) -> int:
        """Labels that take part in the loss; the first token of a sample has no prediction."""
        return int((self.labels[:, 1:] != IGNORE).sum())


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad samples to one length; prompts and padding get no loss.

    No samples give one token without a label: a rank with nothing left still runs a forward and
    backward, so that collectives match, and adds exactly 0.
    """
    if not samples:
        return Batch(torch.zeros((1, 2), dtype=torch.long), torch.full((1, 2), IGNORE), 0)
    length = max(len(tokens) for tokens, _ in samples)
    ids = np.zeros((len(samples), length), dtype=np.int64)
    labels = np.full((len(samples), length), IGNORE, dtype=np.int64)
    for row, (tokens, num_prompt) in enumerate(samples):
        ids[row, : len(tokens)] = tokens
        labels[row, num_prompt : len(tokens)] = tokens[num_prompt:]
    num_tokens = sum(len(tokens) for tokens, _ in samples)
    return Batch(torch.from_numpy(ids), torch.from_numpy(labels), num_tokens)


class Order:
    """Which samples make up a step: a pure function of (seed, step), so resuming needs no state.

    Samples are drawn without replacement through each epoch; a step may span two epochs. Ranks
    share a step's samples like dealt cards, so the step is the same for any number of ranks.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def step_indices(self, step: int, rank: int, world_size: int) -> list[int]:
        """Indices of the samples that `rank` takes at `step` (from 0)."""
        first = step * self._batch_size
        return [
            self._index(position)
            for position in range(first + rank, first + self._batch_size, world_size)
        ]

    def _index(self, position: int) -> int:
        epoch, within = divmod(position, self._num_samples)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._permutation = generator.permutation(self._num_samples)
            self._epoch = epoch
        return int(self._permutation[within])


def micro_batches(
    samples: SampleFile, indices: Sequence[int], micro_batch_size: int, num_micro_batches: int
) -> Iterator[Batch]:
    """The batches of one rank and step; every rank has `num_micro_batches`, some may be empty."""
    for i in range(num_micro_batches):
        chosen = indices[i * micro_batch_size : (i + 1) * micro_batch_size]
        yield collate([samples[index] for index in chosen])
