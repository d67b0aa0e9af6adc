"""The reader of some rows of some pieces; it skips the rest of their files where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, Protocol

import numpy as np

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.data.readers import Raw, arrow_batches, decompressed, rows_in, saying_damage
from train.data.sources import Source
from train.stream.pieces import StreamFile, begins_anywhere

Numbered = list[tuple[int, Raw]]  # rows with their positions

_BATCH_ROWS = 512  # of Parquet, decoded together


class PieceReader:
    """Reads pieces of the files, and reports what has changed since their rows were counted."""

    def __init__(self, files: Sequence[StreamFile], say: Callable[[str], None]) -> None:
        self._files, self._say = files, say
        self._has_grown: set[int] = set()
        # The one that continues in the next window is kept; it may have been read for hours.
        self._open: dict[bool, tuple[tuple[int, int], _Cursor]] = {}

    def source(self, file: int) -> Source:
        """Return a file, by its index among all."""
        return self._files[file].source

    def rows(
        self, pieces: np.ndarray, wanted: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, Numbered]]:
        """Yield, for pieces in any order, the index of the piece and its `wanted` rows, ascending.

        Raises UserError for a file that has changed.
        """
        follows = [self._follows(int(piece["file"])) for piece in pieces]

        def turn(at: int) -> tuple[int, ...]:
            """Return a sort key: plain files from their beginning, others in the epoch's order."""
            piece = pieces[at]
            return (1, at) if follows[at] else (0, int(piece["file"]), int(piece["start"]))

        for at in sorted((at for at in range(len(pieces)) if len(wanted[at])), key=turn):
            yield at, self._of_piece(pieces[at], wanted[at], follows=follows[at])

    def close(self) -> None:
        """Close all open files."""
        for _, cursor in self._open.values():
            cursor.close()
        self._open.clear()

    def _follows(self, file: int) -> bool:
        """Return whether pieces of this file can only be read one after the other."""
        source = self._files[file].source
        return source.format == "parquet" or (source.is_text and not begins_anywhere(source))

    def _of_piece(self, piece: np.ndarray, wanted: np.ndarray, *, follows: bool) -> Numbered:
        at = int(piece["file"])
        file = self._files[at]
        self._check(at, file)
        with saying_damage(file.source):
            key = at, int(piece["group"]) if follows else 0
            opened = self._open.get(follows)
            if opened is None or opened[0] != key or not opened[1].can_go_to(int(piece["start"])):
                if opened is not None:
                    opened[1].close()
                opened = self._open[follows] = key, _cursor(file.source, piece)
            rows = opened[1].take(piece, wanted)
        if rows is None:
            raise _changed(file, "has fewer rows than were counted")
        return rows

    def _check(self, at: int, file: StreamFile) -> None:
        try:
            now = StreamFile.of(file.source)
        except OSError as error:
            raise _changed(file, f"can no longer be read ({error.strerror})") from error
        if now == file:
            return
        if now.size_bytes < file.size_bytes:
            raise _changed(file, f"has {now.size_bytes:,} bytes, it had {file.size_bytes:,}")
        if now.size_bytes == file.size_bytes or now.inode != file.inode:
            raise _changed(file, "was written anew")
        if at not in self._has_grown:
            self._has_grown.add(at)
            more = now.size_bytes - file.size_bytes
            self._say(f"{file.source.path} has grown by {more:,} bytes: they are not trained on")


def _changed(file: StreamFile, what: str) -> UserError:
    return UserError(
        f"the data have changed since their rows were counted: {file.source.path} {what}",
        do="bring back the file as it was, and --resume RUN; or begin a new run",
        code=ExitCode.DATA,
    )


class _Cursor(Protocol):
    """A file that is being read."""

    def can_go_to(self, start: int) -> bool:
        """Return whether a piece that begins at `start` can still be read."""

    def take(self, piece: np.ndarray, wanted: np.ndarray) -> Numbered | None:
        """Return the wanted rows of a piece; None if it has fewer rows than it had."""

    def close(self) -> None:
        """Stop reading and close the file."""


def _cursor(source: Source, piece: np.ndarray) -> _Cursor:
    if source.is_text:
        return _Text(source)
    return _FileBatches(source, int(piece["start"]))


class _Text:
    """Rows of a text file, from any piece on if the file is plain."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0
        self._raw = source.path.open("rb", buffering=0)
        self._file = decompressed(self._raw, source)
        self._rows = None if begins_anywhere(source) else rows_in(self._file, source)

    def can_go_to(self, start: int) -> bool:
        return self._rows is None or self._at <= start

    def take(self, piece: np.ndarray, wanted: np.ndarray) -> Numbered | None:
        start, num_rows = int(piece["start"]), int(piece["num_rows"])
        if (rows := self._rows) is None:
            self._file.seek(0)  # where the column names are
            rows = rows_in(self._file, self._source, start)
        else:
            for _ in islice(rows, start - self._at):
                pass
            self._at = start + num_rows
        keep, rows_, shift, seen = set(wanted.tolist()), [], 0, 0
        for number, row, _ in islice(rows, num_rows):
            if not seen:
                shift = int(piece["number"]) - number
            if seen in keep:
                rows_.append((number + shift, row))
            seen += 1
        return rows_ if seen == num_rows else None

    def close(self) -> None:
        self._rows = None
        self._raw.close()


class _FileBatches:
    """Rows of an Arrow file, from its first on, or of one row group of Parquet."""

    def __init__(self, source: Source, start: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._open, self._at = ExitStack(), 0  # rows of the file before `_batch`
        self._batch: Any = None
        self._batches: Any
        if source.format == "arrow":
            self._batches = arrow_batches(self._open.enter_context(pa.memory_map(str(source.path))))
        else:
            file = self._open.enter_context(pq.ParquetFile(source.path))
            sizes = [
                file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)
            ]
            ends = np.cumsum(sizes)
            group = int(np.searchsorted(ends, start, side="right"))
            groups = [group] if group < len(sizes) else []
            self._at = int(ends[group] - sizes[group]) if groups else 0
            self._batches = file.iter_batches(_BATCH_ROWS, row_groups=groups, use_threads=False)

    def can_go_to(self, start: int) -> bool:
        return self._at <= start

    def take(self, piece: np.ndarray, wanted: np.ndarray) -> Numbered | None:
        start, rows_ = int(piece["start"]), []
        places, end = wanted + start, start + int(piece["num_rows"])
        while True:
            if self._batch is None and (batch := next(self._batches, None)) is not None:
                self._batch = batch
            if self._batch is None:
                return None
            batch_end = self._at + self._batch.num_rows
            here = places[(places >= self._at) & (places < batch_end)]
            if len(here):
                rows = self._batch.take(here - self._at).to_pylist()
                rows_ += list(zip((here + 1).tolist(), rows, strict=True))
            if end <= batch_end:  # the next piece may begin in it
                return rows_
            self._at, self._batch = batch_end, None

    def close(self) -> None:
        self._batch = self._batches = None  # so that what they map can be closed
        self._open.close()
