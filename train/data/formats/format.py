"""What a format of data files does: it gives the rows in blocks, or in pieces that ranks stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from train.chat.bad_row import BadRowError
from train.data.formats.source import Source

BLOCK_BYTES = 1 << 18  # a quarter of a second's work: a stop waits for blocks in progress
BLOCK_ROWS = 8192

# A row of JSON is not parsed yet; a line of text is a row already.
Raw = bytes | str | dict[str, Any] | BadRowError
Numbered = list[tuple[int, Raw]]  # rows with their positions
PieceRow = tuple[int, int, int, int]  # group of the file, start, number, rows
OnProgress = Callable[[int, int], None]  # of bytes and rows


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file with their positions: line numbers in a text file, else counted from 1.

    `rows` may be an Arrow record batch, which is turned into rows where it is tokenised. `at_bytes`
    is how much of the file had been read when the block was made.
    """

    path: Path
    numbers: list[int]
    rows: Any
    at_bytes: int = 0

    def __iter__(self) -> Iterator[tuple[int, Raw]]:
        rows = self.rows if isinstance(self.rows, list) else self.rows.to_pylist()
        return zip(self.numbers, rows, strict=True)

    def cut(self, num_rows: int) -> Block:
        """Return a block of the first `num_rows` rows."""
        return Block(self.path, self.numbers[:num_rows], self.rows[:num_rows], self.at_bytes)


class Cursor(Protocol):
    """A file that is being read piece by piece."""

    def can_go_to(self, start: int) -> bool:
        """Return whether a piece that begins at `start` can still be read."""

    def take(self, piece: Any, wanted: Any) -> Numbered | None:
        """Return the wanted rows of a piece; None if it has fewer rows than it had."""

    def close(self) -> None:
        """Stop reading and close the file."""


class Format(ABC):
    """A format of data files."""

    name: ClassVar[str]
    title: ClassVar[str]  # for people
    endings: ClassVar[tuple[str, ...]]
    magics: ClassVar[tuple[bytes, ...]] = ()  # each file begins with one of them, if there are any
    is_mapped: ClassVar[bool] = False  # into the memory of ranks that stream

    def by_content(self, start: bytes) -> Format:
        """Return the format of a file named as one of this format, which begins with `start`."""
        return self

    def row_command(self, source: Source, number: int) -> str:
        """Return the command that shows a row to people; "" if none does."""
        return ""

    @abstractmethod
    def blocks(self, source: Source) -> Iterator[Block]:
        """Yield all rows of a file."""

    @abstractmethod
    def pieces(
        self, source: Source, piece_bytes: int, on_progress: OnProgress
    ) -> Generator[PieceRow]:
        """Yield the places of some hundred KiB of rows each, without parsing the rows."""

    @abstractmethod
    def is_read_in_order(self, source: Source) -> bool:
        """Return whether pieces of one group can only be read one after the other."""

    @abstractmethod
    def cursor(self, source: Source, start: int) -> Cursor:
        """Open a file to read pieces, the first of which begins at `start`."""
