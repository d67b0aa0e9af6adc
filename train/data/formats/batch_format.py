"""Formats whose files hold record batches, which are turned into rows where they are tokenised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from train.data.formats.format import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Block,
    Cursor,
    Format,
    Numbered,
    OnProgress,
    PieceRow,
)
from train.data.formats.source import Source


class Batches(NamedTuple):
    """Record batches, the rows of the file before them, and how many bytes its first rows take."""

    batches: Iterator[Any]
    at: int
    bytes_of: Callable[[int], int]


class BatchFormat(Format):
    """A format of record batches; positions of rows count from 1."""

    @abstractmethod
    def batches(self, source: Source, files: ExitStack, start: int | None = None) -> Batches:
        """Open a file in `files`; return its batches, with `start` from one that holds that row."""

    @abstractmethod
    def groups(self, source: Source) -> Iterator[tuple[int, int]]:
        """Yield the number of rows and of bytes of each group that is read from its beginning."""

    def blocks(self, source: Source) -> Iterator[Block]:
        with ExitStack() as files:
            batches, at, bytes_of = self.batches(source, files)
            for batch in batches:
                size = max(1, batch.num_rows * BLOCK_BYTES // max(1, batch.nbytes))
                for start in range(0, batch.num_rows, min(size, BLOCK_ROWS)):
                    some = batch.slice(start, min(size, BLOCK_ROWS))
                    numbers = list(range(at + 1, at + 1 + some.num_rows))
                    at += some.num_rows
                    yield Block(source.path, numbers, some, bytes_of(at))

    def pieces(
        self, source: Source, piece_bytes: int, on_progress: OnProgress
    ) -> Generator[PieceRow]:
        at = 0
        for group, (num_rows, num_bytes) in enumerate(self.groups(source)):
            each, end = max(1, num_rows * piece_bytes // max(1, num_bytes)), at + num_rows
            for start in range(at, end, each):
                yield group, start, start + 1, min(each, end - start)
            at = end

    def cursor(self, source: Source, start: int) -> Cursor:
        files = ExitStack()
        return _BatchCursor(files, self.batches(source, files, start))


class _BatchCursor:
    """Rows of consecutive batches."""

    def __init__(self, files: ExitStack, batches: Batches) -> None:
        self._files, self._batches, self._at = files, batches.batches, batches.at
        self._batch: Any = None

    def can_go_to(self, start: int) -> bool:
        return self._at <= start

    def take(self, piece: Any, wanted: Any) -> Numbered | None:
        start, taken = int(piece["start"]), []
        places, end = wanted + start, start + int(piece["num_rows"])
        while True:
            if self._batch is None:
                self._batch = next(self._batches, None)
            if self._batch is None:
                return None
            batch_end = self._at + self._batch.num_rows
            here = places[(places >= self._at) & (places < batch_end)]
            if len(here):
                rows = self._batch.take(here - self._at).to_pylist()
                taken += list(zip((here + 1).tolist(), rows, strict=True))
            if end <= batch_end:  # the next piece may begin in it
                return taken
            self._at, self._batch = batch_end, None

    def close(self) -> None:
        self._batch, self._batches = None, iter(())  # so that what they map can be closed
        self._files.close()
