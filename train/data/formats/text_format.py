"""Formats whose files are text, maybe compressed: rows are read one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from train.data.formats.format import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Block,
    Cursor,
    Format,
    Numbered,
    OnProgress,
    PieceRow,
    Raw,
)
from train.data.formats.source import Source

TextRow = tuple[int, Raw, int]  # position, row, size in bytes


class TextFormat(Format):
    """A format of text; a new one only needs to say what its rows are."""

    begins_at_any_row: ClassVar[bool] = True  # of a plain file

    @abstractmethod
    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        """Yield the rows of an open file.

        Reading begins at byte `start`, where a row must begin; positions then count from 2. `file`
        is read to the end of the row that was yielded and no further, except for rows of several
        lines.
        """

    def row_command(self, source: Source, number: int) -> str:
        # A row may have megabytes, and nothing after it needs to be read.
        return f"{source.printed_by} | sed -n '{number}{{p;q}}' | head -c 2000"

    def is_read_in_order(self, source: Source) -> bool:
        return bool(source.compression) or not self.begins_at_any_row

    def blocks(self, source: Source) -> Iterator[Block]:
        with source.path.open("rb", buffering=0) as raw:
            file = source.decompressed(raw)  # closes `raw` once nothing refers to it
            numbers: list[int] = []
            some: list[Raw] = []
            num_bytes = 0
            for number, row, size in self.rows(file, source):
                numbers.append(number)
                some.append(row)
                num_bytes += size
                if num_bytes >= BLOCK_BYTES or len(some) >= BLOCK_ROWS:
                    yield Block(source.path, numbers, some, raw.tell())
                    numbers, some, num_bytes = [], [], 0
            if some:
                yield Block(source.path, numbers, some, raw.tell())

    def pieces(
        self, source: Source, piece_bytes: int, on_progress: OnProgress
    ) -> Generator[PieceRow]:
        with source.path.open("rb", buffering=0) as raw:
            file = source.decompressed(raw)
            position = None if self.is_read_in_order(source) else file.tell
            num_rows = 0
            for piece in _cut(self.rows(file, source), piece_bytes, position):
                num_rows += piece[-1]
                yield piece
                on_progress(raw.tell(), num_rows)

    def cursor(self, source: Source, start: int) -> Cursor:
        return _TextCursor(self, source)


def _cut(
    rows: Iterable[TextRow], piece_bytes: int, position: Callable[[], int] | None
) -> Iterator[PieceRow]:
    """Yield the pieces of rows; without `position` each follows the one before it."""
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


class _TextCursor:
    """Rows of a text file, from any piece on where that is possible."""

    def __init__(self, form: TextFormat, source: Source) -> None:
        self._form, self._source, self._at = form, source, 0
        self._raw = source.path.open("rb", buffering=0)
        self._file = source.decompressed(self._raw)
        in_order = form.is_read_in_order(source)
        self._rows = form.rows(self._file, source) if in_order else None

    def can_go_to(self, start: int) -> bool:
        return self._rows is None or self._at <= start

    def take(self, piece: Any, wanted: Any) -> Numbered | None:
        start, num_rows = int(piece["start"]), int(piece["num_rows"])
        if (rows := self._rows) is None:
            self._file.seek(0)  # where the column names are
            rows = self._form.rows(self._file, self._source, start)
        else:
            for _ in islice(rows, start - self._at):
                pass
            self._at = start + num_rows
        keep, taken, shift, num_read = set(wanted.tolist()), [], 0, 0
        for number, row, _ in islice(rows, num_rows):
            if not num_read:
                shift = int(piece["number"]) - number
            if num_read in keep:
                taken.append((number + shift, row))
            num_read += 1
        return taken if num_read == num_rows else None

    def close(self) -> None:
        self._rows = None
        self._raw.close()
