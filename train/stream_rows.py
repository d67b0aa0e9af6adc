"""One rank's rows of each step, as they stand in the files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise

import numpy as np

from train.piece_reader import PieceReader
from train.readers import Raw
from train.sources import Source
from train.stream_order import StreamOrder, Window


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its place."""

    source: Source
    number: int
    raw: Raw


class StreamRows:
    """Every `world_size`-th row of the order: all ranks have as many as each other.

    Holds the rows of one window that are this rank's.
    """

    def __init__(
        self,
        order: StreamOrder,
        reader: PieceReader,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._order, self._reader = order, reader
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size

    def steps(self, first: int) -> Generator[tuple[range, list[Row]]]:
        """Of step `first` (from 0), and of all after it: the places in the step, and the rows.

        Raises UserError for a file that is no longer what it was.
        """
        rows = self._rows(first * self._batch_size)
        for step in count(first):
            own = (self._rank - step * self._batch_size) % self._world_size
            places = range(own, self._batch_size, self._world_size)
            yield places, list(islice(rows, len(places)))

    def _rows(self, position: int) -> Iterator[Row]:
        while True:
            window = self._order.window(position)
            positions = np.arange(position, window.end)
            own = positions[positions % self._world_size == self._rank]
            yield from self._of_window(window, own)
            position = window.end

    def _of_window(self, window: Window, positions: np.ndarray) -> Iterator[Row]:
        slots, rows = window.places(positions)
        as_read = np.lexsort((rows, slots))
        bounds = np.searchsorted(slots[as_read], np.arange(len(window.pieces) + 1)).tolist()
        parts = [as_read[begin:end] for begin, end in pairwise(bounds)]
        found: list[Row | None] = [None] * len(positions)
        for at, some in self._reader.rows(window.pieces, [rows[part] for part in parts]):
            source = self._reader.source(int(window.pieces[at]["file"]))
            for index, (number, raw) in zip(parts[at].tolist(), some, strict=True):
                found[index] = Row(source, number, raw)
        for index, row in enumerate(found):
            found[index] = None  # it has had its use
            assert row is not None
            yield row
