"""Parquet, whose row groups are decoded apart from each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

from train.data.formats.batch_format import BatchFormat
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

    def batches(
        self, source: Source, files: ExitStack
    ) -> tuple[Iterable[Any], Callable[[int], int]]:
        import pyarrow.parquet as pq

        file = files.enter_context(pq.ParquetFile(source.path))
        num_rows, size = file.metadata.num_rows, sum(num_bytes for _, num_bytes in _groups(file))
        rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * num_rows // max(1, size)))
        total = source.path.stat().st_size
        batches = file.iter_batches(batch_size=rows, use_threads=False)
        return batches, lambda at: total * at // max(1, num_rows)

    def batches_from(
        self, source: Source, start: int, files: ExitStack
    ) -> tuple[Iterator[Any], int]:
        import pyarrow.parquet as pq

        file = files.enter_context(pq.ParquetFile(source.path))
        ends = [0, *accumulate(num_rows for num_rows, _ in _groups(file))]
        group = bisect_right(ends, start) - 1
        groups = [group] if group < file.metadata.num_row_groups else []
        batches = file.iter_batches(_PIECE_ROWS, row_groups=groups, use_threads=False)
        return batches, ends[group]


def _groups(file: Any) -> Iterator[tuple[int, int]]:
    """Yield the number of rows and of bytes of each row group."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        yield group.num_rows, group.total_byte_size
