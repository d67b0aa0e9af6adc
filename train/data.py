"""Tokenised samples, memory-mapped."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rundir.prepared import PreparedData

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

    def length(self, index: int) -> int:
        """How many tokens a sample has."""
        batch, row = self._place(index)
        return int(self._offsets[batch][row + 1] - self._offsets[batch][row])

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
