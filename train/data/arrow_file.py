"""The writer of tokenised blocks to the Arrow files that ranks map, and their counts."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from train.chat.bad_row import BadRowError
from train.data.dataset import int32_view
from train.data.samples import SCHEMA, Counts, Tokenised
from train.data.tokenise import NUM_LONGEST

TRAIN, HELD_OUT, BAD_ROWS = "samples.arrow", "held_out.arrow", "bad_rows.jsonl"
HELD_OUT_ROWS = "held_out.jsonl"  # as they were in their files
_BATCH_BYTES = 16 << 20
MOST_LISTED = 10_000  # bad rows that are listed; all are counted
_MOST_COMPARED = 64_000_000  # rows checked for duplicates: half a GB of digests


class Writer:
    """Writes a folder of prepared data, block by block; memory does not grow with the data."""

    def __init__(self, folder: Path, sources: Sequence[Path], *, with_held_out: bool) -> None:
        """Open the files. Rows refer to a source by its index, as its file may be moved."""
        self._folder, self._open = folder, ExitStack()
        self._number_of = {path: number for number, path in enumerate(sources)}
        self._train = self._arrow(TRAIN)
        self._held_out = self._arrow(HELD_OUT) if with_held_out else None
        self._bad = self._text(BAD_ROWS)
        self._held_out_rows = self._text(HELD_OUT_ROWS) if with_held_out else None
        self._counts, self._hashes = Counts(), [np.empty(0, np.uint64)]
        self.seen = set[str]()  # columns that have a value in some row
        self._longest: list[tuple[int, int, int]] = []
        self._num = dict.fromkeys(
            ("num_samples", "num_held_out", "num_tokens", "num_loss_tokens", "num_compared"), 0
        )

    def _arrow(self, name: str) -> _Batches:
        file = self._open.enter_context(pa.OSFile(str(self._folder / name), "wb"))
        return _Batches(self._open.enter_context(pa.ipc.new_file(file, SCHEMA)))

    def _text(self, name: str) -> IO[str]:
        return self._open.enter_context((self._folder / name).open("w", encoding="utf-8"))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        with self._open:
            for file in (self._train, self._held_out) if kind is None else ():
                if file is not None:
                    file.flush()

    def add(self, block: Tokenised) -> None:
        """Write a block's samples. Raises OSError, for example for a full disk."""
        rows, number = block.encoded, self._number_of[block.path]
        for row, error in rows.bad:
            if self._counts.num_bad < MOST_LISTED:
                self._bad.write(bad_row_line(block.path, row, error, source=number))
        self._counts.add(rows.counts)
        self.seen |= rows.seen
        longest = [(tokens, number, row) for tokens, row in rows.longest]
        self._longest = heapq.nlargest(NUM_LONGEST, [*self._longest, *longest])
        if self._num["num_compared"] < _MOST_COMPARED:
            self._hashes.append(np.frombuffer(rows.digests, np.uint64))
            self._num["num_compared"] += len(self._hashes[-1])
        self._num["num_samples"] += block.train.num_rows
        self._num["num_held_out"] += block.held_out.num_rows
        self._num["num_tokens"] += len(block.train.column("input_ids").values)
        ranges = int32_view(block.train.column("loss_ranges").values)
        self._num["num_loss_tokens"] += int(ranges[1::2].sum() - ranges[::2].sum())
        self._train.add(_with_source(block.train, number))
        if self._held_out is not None:
            self._held_out.add(_with_source(block.held_out, number))
        if self._held_out_rows is not None:
            self._held_out_rows.writelines(rows.held_out_rows)

    @property
    def num_rows(self) -> int:
        """The number of rows so far, including bad ones."""
        return self._counts.num_rows

    def counts(self) -> dict[str, Any]:
        """Return all counts; `longest_rows` are (index of the file, row, tokens)."""
        longest = [(number, row, tokens) for tokens, number, row in self._longest]
        more = {"num_duplicates": _duplicates(self._hashes), "longest_rows": longest}
        return asdict(self._counts) | self._num | more


def bad_row_line(path: Path, number: int, error: BadRowError, **more: int) -> str:
    """Return the line for a bad row in the list of bad rows."""
    line = {"file": str(path), "row": number, "problem": error.what, **more}
    if error.do:
        line["do"] = error.do
    return json.dumps(line, ensure_ascii=True) + "\n"


def _with_source(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Return the batch with the number of its file, which the process that made it cannot know."""
    sources = pa.array([number] * batch.num_rows, pa.int32())
    return pa.RecordBatch.from_arrays([*batch.columns[:-1], sources], schema=SCHEMA)


class _Batches:
    """Combines blocks into batches, so that a rank that opens the file finds only a few."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._size_bytes = writer, 0
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        for batch in pa.Table.from_batches(self._waiting, SCHEMA).combine_chunks().to_batches():
            self._writer.write_batch(batch)
        self._waiting, self._size_bytes = [], 0


def _duplicates(hashes: Iterable[np.ndarray]) -> int:
    """Return the number of rows with the same content as an earlier one."""
    together = np.concatenate(list(hashes))
    together.sort()
    return int((together[1:] == together[:-1]).sum())
