"""The places of rows in streamed files: a small table of pieces, made by reading the files once.

A piece is some hundred KiB of consecutive rows. Rows of plain text, and of Arrow, can be read from
the beginning of any piece; those of compressed text, of JSON other than lines and of a Parquet row
group only one piece after the other. Such pieces form one group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from train.data.columns import Columns
from train.data.sources import Source

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


def begins_anywhere(source: Source) -> bool:
    """Return whether reading can start at any byte at which a row begins."""
    return source.format != "json" and source.is_text and not source.compression


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
