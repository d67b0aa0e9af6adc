"""Memory-mapped tokenised samples, and their text with marks around the tokens with loss."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from rundir.prepared import PreparedData, PreparedPart

# Token ids, and the begin and end of each run of tokens with loss: an array (runs, 2).
Sample = tuple[np.ndarray, np.ndarray]

NUM_SHOWN = 3
_SHORT = 160  # characters of a sample on the console
BEGIN, END = "[[", "]]"


def preview(prepared: PreparedData, tokenizer: Any) -> list[str]:
    """Return the first samples decoded, including special tokens."""
    samples = SampleFile(prepared)
    return [marked(*samples[i], tokenizer=tokenizer) for i in range(min(NUM_SHOWN, len(samples)))]


def marked(tokens: Any, ranges: Any, *, tokenizer: Any) -> str:
    """Return the text of a sample, with the parts that have loss in double brackets.

    It shows every token, also a space in front that decoders hide at the beginning of a text.
    """
    ids = [int(token) for token in tokens]
    guard = tokenizer.encode("a", add_special_tokens=False).ids[-1:]

    def text(begin: int, end: int) -> str:
        hidden, shown = (
            tokenizer.decode([*guard, *some], skip_special_tokens=False)
            for some in ([], ids[begin:end])
        )
        return str(shown.removeprefix(hidden))

    parts, done = [], 0
    for begin, end in ranges:
        parts += [text(done, begin), BEGIN, text(begin, end), END]
        done = end
    return "".join([*parts, text(done, len(ids))])


def short(text: str) -> str:
    """Return the text on one line, its middle omitted, without control of a terminal's cursor."""
    line = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    half = _SHORT // 2
    return line if len(line) <= _SHORT else f"{line[:half]} … {line[-half:]}"


def prompted(tokens: np.ndarray, num_prompt_tokens: int) -> Sample:
    """Return a sample of a prompt and an answer; only the answer has loss."""
    return tokens, np.array([[num_prompt_tokens, len(tokens)]])


def int32_view(array: pa.Int32Array) -> np.ndarray:
    """Return a view of the array's values, none of which may be null.

    The array's own `to_numpy` imports pandas if it is installed: 0.4 s, and memory in every rank.
    """
    data = array.buffers()[1]
    values = np.frombuffer(data or b"", np.int32)
    return values[array.offset : array.offset + len(array)]


class _Lists:
    """A column of lists of integers, each of them a view of the file."""

    def __init__(self, column: pa.ListArray) -> None:
        self._values, self._offsets = int32_view(column.values), int32_view(column.offsets)

    def __getitem__(self, row: int) -> np.ndarray:
        ids: np.ndarray = self._values[self._offsets[row] : self._offsets[row + 1]]
        return ids

    def touch(self) -> None:
        self._values.max(initial=0)
        self._offsets.max(initial=0)

    def length(self, row: int) -> int:
        return int(self._offsets[row + 1] - self._offsets[row])

    def lengths(self) -> np.ndarray:
        return np.diff(self._offsets)


class SampleFile:
    """Random access to Arrow files; the pages are shared by every rank of the node.

    Samples of several files are numbered consecutively. The length is that of an epoch, which may
    take more of a file's samples than there are, or fewer.
    """

    def __init__(self, prepared: PreparedData) -> None:
        """Map `prepared.paths`. Raises OSError if a file is gone."""
        self._prepared = prepared
        files = [pa.ipc.open_file(pa.memory_map(path)) for path in prepared.paths]
        # The batches stay as they were written: joining them would copy them into memory.
        self._batches = [
            file.get_batch(i) for file in files for i in range(file.num_record_batches)
        ]
        self._file_of = [
            number for number, file in enumerate(files) for _ in range(file.num_record_batches)
        ]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        self._ids = [_Lists(batch.column("input_ids")) for batch in self._batches]
        self._ranges = [_Lists(batch.column("loss_ranges")) for batch in self._batches]

    def __reduce__(self) -> tuple[type[SampleFile], tuple[PreparedData]]:
        return SampleFile, (self._prepared,)  # another process maps the same file

    def __len__(self) -> int:
        if self._prepared.parts:
            return sum(part.num_drawn for part in self._prepared.parts)
        return self._num

    @property
    def parts(self) -> Sequence[PreparedPart]:
        """The files, if there are several, or if not every sample comes once in an epoch."""
        return self._prepared.parts

    @property
    def _num(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Sample:
        batch, row = self._place(index)
        return self._ids[batch][row], self._ranges[batch][row].reshape(-1, 2)

    def length(self, index: int) -> int:
        """Return the number of tokens in a sample."""
        batch, row = self._place(index)
        return self._ids[batch].length(row)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens in each sample."""
        return np.concatenate([np.empty(0, np.int32), *(column.lengths() for column in self._ids)])

    def touch(self) -> None:
        """Read every page of tokens into memory; for measurements."""
        for column in (*self._ids, *self._ranges):
            column.touch()

    def texts(self, index: int) -> tuple[str, str]:
        """Return (prompt, response) of a held-out sample, as in the data."""
        batch, row = self._place(index)
        columns = (self._batches[batch].column(name) for name in ("prompt", "response"))
        prompt, response = (column[row].as_py() for column in columns)
        return prompt, response

    def origin(self, index: int) -> tuple[int, int | None, int | None]:
        """Return (number of the Arrow file, of the data file it is made of, of the row there)."""
        batch, row = self._place(index)
        source, number = (self._batches[batch].column(name) for name in ("source", "row"))
        return self._file_of[batch], source[row].as_py(), number[row].as_py()

    def _place(self, index: int) -> tuple[int, int]:
        """Return (batch, row in the batch) of a sample. Raises IndexError."""
        if not 0 <= index < self._num:
            raise IndexError(f"sample {index} of {self._num}")
        batch = bisect_right(self._ends, index)
        return batch, index - self._ends[batch] + self._batches[batch].num_rows
