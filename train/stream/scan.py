"""A scan that reads files once, without parsing their rows, to find where the rows are."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial

import numpy as np

from rundir.atomic import write_bytes
from train.data.pool import in_order, num_processes
from train.data.prepare_progress import PrepareProgress
from train.data.readers import Raw, arrow_batches, decompressed, rows_in, saying_damage
from train.data.sources import Source
from train.files.content import is_remembered, is_settled, note_of, seen
from train.stream.pieces import PIECE, StreamFile, begins_anywhere

_SMALL_BYTES = 64 << 20  # finished before other processes could start
_VERSION = 2  # of what is remembered
_PIECE_BYTES = 1 << 18
_MOST_PIECES = 1 << 20  # approximately: 28 MB of table, whatever the files hold

# (group of the file, start, number, rows)
_Row = tuple[int, int, int, int]


def piece_bytes_of(files: Iterable[StreamFile]) -> int:
    """Return the size of pieces in bytes: small, unless there would be too many."""
    return max(_PIECE_BYTES, sum(file.size_bytes for file in files) // _MOST_PIECES)


def scan_all(files: list[StreamFile], piece_bytes: int, max_rows: int) -> np.ndarray:
    """Return the table of pieces of all files, or of the first `max_rows` rows unless that is 0.

    Raises OSError, and UserError for a damaged file.
    """
    total_bytes = sum(file.size_bytes for file in files)
    progress, processes = PrepareProgress(total_bytes), min(num_processes(), len(files))
    if max_rows or total_bytes <= _SMALL_BYTES:
        processes = 1
    done_bytes = num_rows = num_groups = 0
    tables = []

    def tell(at_bytes: int, rows: int) -> None:
        if processes == 1:
            progress.at(done_bytes + at_bytes, num_rows + rows)

    work = partial(_remembered, piece_bytes=piece_bytes, tell=tell)
    if max_rows:  # partial results are not remembered
        work = partial(scan, piece_bytes=piece_bytes, tell=tell, max_rows=max_rows)
    with closing(in_order(work, [file.source for file in files], processes)) as scanned:
        for at, table in enumerate(scanned):
            table["file"] = at
            table["group"] += num_groups
            tables.append(table)
            num_groups = int(table["group"][-1]) + 1 if len(table) else num_groups
            num_rows += int(table["num_rows"].sum())
            done_bytes += files[at].size_bytes
            progress.at(done_bytes, num_rows)
            if 0 < max_rows <= num_rows:
                break
    progress.end()
    return _first_rows(np.concatenate(tables), max_rows or sys.maxsize)


def _first_rows(table: np.ndarray, max_rows: int) -> np.ndarray:
    ends = table["num_rows"].cumsum(dtype=np.int64)
    rows = table[: int(np.searchsorted(ends, max_rows)) + 1]
    if len(rows) and ends[len(rows) - 1] > max_rows:
        rows["num_rows"][-1] -= ends[len(rows) - 1] - max_rows
    return rows


def _remembered(source: Source, piece_bytes: int, tell: Callable[[int, int], None]) -> np.ndarray:
    """Return the result of `scan`, or a remembered one if the file has not changed since."""
    before = source.path.stat()
    if not is_remembered(before):
        return scan(source, piece_bytes, tell)
    note = note_of(source.path, "pieces", ".npz")
    is_as = [_VERSION, piece_bytes, *map(ord, source.format + source.compression), *seen(before)]
    with contextlib.suppress(OSError, ValueError, KeyError), np.load(note) as noted:
        if noted["is_as"].tolist() == is_as:
            return np.array(noted["table"], PIECE)
    table = scan(source, piece_bytes, tell)
    if is_settled(before):
        made = io.BytesIO()
        np.savez(made, is_as=np.array(is_as), table=table)
        with contextlib.suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(note, made.getvalue(), durable=False)
    return table


def scan(
    source: Source,
    piece_bytes: int,
    tell: Callable[[int, int], None] = lambda *_: None,
    max_rows: int = sys.maxsize,
) -> np.ndarray:
    """Return the pieces of a file, or those that hold its first rows.

    Raises OSError, and UserError if the file is damaged.
    """
    with saying_damage(source), closing(_pieces(source, piece_bytes, tell)) as pieces:
        return np.fromiter(((0, *piece) for piece in _up_to(pieces, max_rows)), PIECE)


def _up_to(pieces: Iterable[_Row], max_rows: int) -> Iterator[_Row]:
    num_rows = 0
    for piece in pieces:
        yield piece
        num_rows += piece[-1]
        if num_rows >= max_rows:
            return


def _pieces(source: Source, piece_bytes: int, tell: Callable[[int, int], None]) -> Generator[_Row]:
    if source.format == "parquet":
        yield from _of_parquet(source, piece_bytes)
    elif source.format == "arrow":
        yield from _of_arrow(source, piece_bytes)
    else:
        with source.path.open("rb", buffering=0) as raw:
            file = decompressed(raw, source)
            position = file.tell if begins_anywhere(source) else None
            num_rows = 0
            for piece in _cut(rows_in(file, source), piece_bytes, position):
                num_rows += piece[-1]
                yield piece
                tell(raw.tell(), num_rows)


def _cut(
    rows: Iterable[tuple[int, Raw, int]], piece_bytes: int, position: Callable[[], int] | None
) -> Iterator[_Row]:
    """Yield the pieces of text rows; without `position` each follows the one before it."""
    group = start = first_number = num_rows = num_bytes = num_done = 0
    for number, _, size in rows:
        if not num_rows:
            first_number = number
        num_rows += 1
        num_bytes += size
        if num_bytes >= piece_bytes:
            yield group, start, first_number, num_rows
            num_done += num_rows
            start, num_rows, num_bytes = num_done, 0, 0
            if position is not None:
                start, group = position(), group + 1
    if num_rows:
        yield group, start, first_number, num_rows


def _of_parquet(source: Source, piece_bytes: int) -> Iterator[_Row]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(source.path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    yield from _divided([(group.num_rows, group.total_byte_size) for group in groups], piece_bytes)


def _of_arrow(source: Source, piece_bytes: int) -> Iterator[_Row]:
    import pyarrow as pa

    with pa.memory_map(str(source.path)) as mapped:
        yield from _divided(
            ((batch.num_rows, batch.nbytes) for batch in arrow_batches(mapped)), piece_bytes
        )


def _divided(groups: Iterable[tuple[int, int]], piece_bytes: int) -> Iterator[_Row]:
    """Yield the pieces of groups that are given as numbers of rows and bytes."""
    at = 0
    for group, (num_rows, num_bytes) in enumerate(groups):
        each, end = max(1, num_rows * piece_bytes // max(1, num_bytes)), at + num_rows
        for start in range(at, end, each):
            yield group, start, start + 1, min(each, end - start)
        at = end
