"""The places of rows in streamed files: a small table of pieces, made by reading the files once.

A piece is some hundred KiB of consecutive rows, which are not parsed to find it. Rows of plain
text, and of Arrow, can be read from the beginning of any piece; those of compressed text, of JSON
other than lines and of a Parquet row group only one piece after the other. Such pieces form one
group.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from train.data.columns import Columns
from train.data.formats.format import OnProgress, PieceRow
from train.data.formats.known import format_of
from train.data.formats.source import Source, naming_damage
from train.data.pool import in_order, num_processes
from train.data.reading_progress import ReadingProgress
from train.files.content import remembered

# `file` is the index in the list of files. `start` is where the piece begins: a byte offset in
# plain text, else the number of rows before it. `number` is the position of its first row, for
# people.
PIECE = np.dtype(
    [
        ("file", "<i4"),
        ("group", "<i4"),
        ("start", "<i8"),
        ("number", "<i8"),
        ("num_rows", "<i4"),
    ]
)
_TABLE, _ABOUT = "pieces.npy", "stream.json"
_SMALL_BYTES = 64 << 20  # finished before other processes could start
_VERSION = 3  # of what is remembered
_PIECE_BYTES = 1 << 18
_MOST_PIECES = 1 << 20  # approximately: 28 MB of table, whatever the files hold


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFile:
    """A file of rows, as it was when they were counted."""

    source: Source
    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, source: Source) -> StreamFile:
        """Return the file in its current state. Raises OSError."""
        stat = source.path.stat()
        return cls(
            source=source,
            size_bytes=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
            inode=stat.st_ino,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """All pieces of some files, in the order of the files, and the columns to read."""

    files: Sequence[StreamFile]
    table: np.ndarray  # of dtype PIECE
    piece_bytes: int
    columns: Columns

    @property
    def num_rows(self) -> int:
        """The number of all rows."""
        return int(self.table["num_rows"].sum(dtype=np.int64))

    @property
    def fingerprint(self) -> str:
        """A digest, the same for files of the same order, sizes and rows."""
        digest = hashlib.sha256(np.ascontiguousarray(self.table).tobytes())
        digest.update(repr([file.size_bytes for file in self.files]).encode())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write the pieces to a new folder. Raises OSError."""
        folder.mkdir(parents=True)
        np.save(folder / _TABLE, self.table)
        about = {
            "piece_bytes": self.piece_bytes,
            "columns": asdict(self.columns),
            "files": [_as_json(file) for file in self.files],
        }
        (folder / _ABOUT).write_text(json.dumps(about), encoding="ascii")

    @classmethod
    def load(cls, folder: Path) -> Pieces:
        """Return what `save` wrote; the table is memory-mapped. Raises OSError."""
        about = json.loads((folder / _ABOUT).read_text(encoding="ascii"))
        named = about["columns"]
        return cls(
            files=[_from_json(file) for file in about["files"]],
            table=np.load(folder / _TABLE, mmap_mode="r"),
            piece_bytes=about["piece_bytes"],
            columns=Columns(**named | {"names": tuple(named["names"])}),
        )


def _as_json(file: StreamFile) -> dict[str, Any]:
    table = asdict(file)
    # Ranks may run in another working directory.
    return table | {"source": table["source"] | {"path": str(file.source.path.absolute())}}


def _from_json(table: dict[str, Any]) -> StreamFile:
    source = table["source"]
    return StreamFile(**table | {"source": Source(**source | {"path": Path(source["path"])})})


def piece_bytes_of(files: Iterable[StreamFile]) -> int:
    """Return the size of pieces in bytes: small, unless there would be too many."""
    return max(_PIECE_BYTES, sum(file.size_bytes for file in files) // _MOST_PIECES)


def scan_all(files: list[StreamFile], piece_bytes: int, max_rows: int) -> np.ndarray:
    """Return the table of pieces of all files, or of the first `max_rows` rows unless that is 0.

    Raises OSError, and UserError for a damaged file.
    """
    total_bytes = sum(file.size_bytes for file in files)
    progress, processes = ReadingProgress(total_bytes), min(num_processes(), len(files))
    if max_rows or total_bytes <= _SMALL_BYTES:
        processes = 1
    done_bytes = num_rows = num_groups = 0
    tables = []

    def on_progress(at_bytes: int, rows: int) -> None:
        if processes == 1:
            progress.at(done_bytes + at_bytes, num_rows + rows)

    work = partial(_remembered, piece_bytes=piece_bytes, on_progress=on_progress)
    if max_rows:  # partial results are not remembered
        work = partial(scan, piece_bytes=piece_bytes, on_progress=on_progress, max_rows=max_rows)
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


def _remembered(source: Source, piece_bytes: int, on_progress: OnProgress) -> np.ndarray:
    """Return the result of `scan`, or a remembered one if the file has not changed since."""

    def table() -> bytes:
        return scan(source, piece_bytes, on_progress).tobytes()

    made_with = _VERSION, piece_bytes, source.format, source.compression
    return np.frombuffer(remembered(source.path, "pieces", table, *made_with), PIECE).copy()


def scan(
    source: Source,
    piece_bytes: int,
    on_progress: OnProgress = lambda *_: None,
    max_rows: int = sys.maxsize,
) -> np.ndarray:
    """Return the pieces of a file, or those that hold its first rows.

    Raises OSError, and UserError if the file is damaged.
    """
    generator = format_of(source).pieces(source, piece_bytes, on_progress)
    with naming_damage(source), closing(generator) as pieces:
        return np.fromiter(((0, *piece) for piece in _up_to(pieces, max_rows)), PIECE)


def _up_to(pieces: Iterable[PieceRow], max_rows: int) -> Iterator[PieceRow]:
    num_rows = 0
    for piece in pieces:
        yield piece
        num_rows += piece[-1]
        if num_rows >= max_rows:
            return
