"""Parquet, whose row groups are decoded apart from each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

from train.data.formats.batch_format import Batches, BatchFormat
from train.data.formats.format import BLOCK_BYTES, BLOCK_ROWS
from train.data.formats.source import Source

_PIECE_ROWS = 512  # decoded together for a piece


class Parquet(BatchFormat):
    """Apache Parquet."""

    name, title, endings, magics = "parquet", "Parquet", (".parquet",), (b"PAR1",)

    def is_read_in_order(self, source: Source) -> bool:
        return True

    def groups(self, source: Source) -> Iterator[tuple[int, int]]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(source.path) as file:
            yield from _groups(file)

    def batches(self, source: Source, files: ExitStack, start: int | None = None) -> Batches:
        import pyarrow.parquet as pq

        file = files.enter_context(pq.ParquetFile(source.path))
        ends = [0, *accumulate(num_rows for num_rows, _ in _groups(file))]
        total, num_rows = source.path.stat().st_size, max(1, ends[-1])
        at, groups, batch_rows = 0, range(len(ends) - 1), _PIECE_ROWS
        if start is None:
            size = sum(num_bytes for _, num_bytes in _groups(file))
            batch_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * ends[-1] // max(1, size)))
        else:
            group = bisect_right(ends, start) - 1
            at, groups = ends[group], groups[group : group + 1]
        batches = file.iter_batches(batch_rows, row_groups=groups, use_threads=False)
        return Batches(batches, at, lambda rows: total * rows // num_rows)


def _groups(file: Any) -> Iterator[tuple[int, int]]:
    """Yield the number of rows and of bytes of each row group."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        yield group.num_rows, group.total_byte_size
