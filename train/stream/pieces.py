"""Where the rows of streamed files lie: a small table of pieces, made by reading the files once.

A piece is some hundred KiB of rows that stand one after the other. Rows of plain text, and of
Arrow, can be read from the beginning of any piece; those of compressed text, of a JSON array and of
a row group of Parquet only one piece after the other. Such pieces are one group.
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

# `file` is the place in the list of files. `start` is where the piece begins: in bytes of plain
# text, else the rows of the file before it. `number` is the place of its first row for people.
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
        """As it is now. Raises OSError."""
        found = source.path.stat()
        return cls(
            source=source,
            size_bytes=found.st_size,
            mtime_ns=found.st_mtime_ns,
            inode=found.st_ino,
        )


def begins_anywhere(source: Source) -> bool:
    """Whether rows can be read from any byte on at which one begins."""
    return source.format != "json" and source.is_text and not source.compression


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """All pieces of some files, in the order of these; what is to be made of their rows."""

    files: Sequence[StreamFile]
    table: np.ndarray  # of PIECE
    piece_bytes: int
    columns: Columns

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return int(self.table["num_rows"].sum(dtype=np.int64))

    @property
    def fingerprint(self) -> str:
        """The same for files of the same names' order, sizes and rows."""
        digest = hashlib.sha256(np.ascontiguousarray(self.table).tobytes())
        digest.update(repr([file.size_bytes for file in self.files]).encode())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write them to a new folder. Raises OSError."""
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
        """What `save` has written; the table is mapped. Raises OSError."""
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
    # Ranks may run elsewhere.
    return table | {"source": table["source"] | {"path": str(file.source.path.absolute())}}


def _from_json(table: dict[str, Any]) -> StreamFile:
    source = table["source"]
    return StreamFile(**table | {"source": Source(**source | {"path": Path(source["path"])})})
