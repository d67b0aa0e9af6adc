"""The order of streamed rows: each once per epoch, a pure function of position and seeds.

Groups of pieces are permuted, and the result is cut into windows of a fixed number of pieces,
within which rows are permuted. So a row has the same position for any number of ranks, and can be
found without reading those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from train.batches.course import of_epoch


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How rows are shuffled, from an epoch (counted from 0) on."""

    from_epoch: int
    seed: int
    pieces_per_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows at the positions from `begin` on, below `end`, counted through all epochs."""

    epoch: int
    begin: int
    end: int
    pieces: np.ndarray  # rows of the table, in order
    _rows: np.ndarray  # position from `begin` → row of all pieces concatenated

    def places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each position, the index of its piece and the row's index in that piece."""
        rows, ends = self._rows[positions - self.begin], self.pieces["num_rows"].cumsum()
        slots = np.searchsorted(ends, rows, side="right")
        return slots, rows - (ends - self.pieces["num_rows"])[slots]


class StreamOrder:
    """A map from position to row. Positions continue through all epochs.

    Position p is row `p % num_rows` of epoch `p // num_rows`. Takes memory for two numbers per
    piece.
    """

    def __init__(self, table: np.ndarray, shuffles: Sequence[Shuffle]) -> None:
        self._table, self._shuffles = table, shuffles
        self.num_rows = int(table["num_rows"].sum(dtype=np.int64))
        self._epoch = -1
        self._pieces = self._ends = np.empty(0, np.int64)

    def window(self, position: int) -> Window:
        """Return the window that contains a position."""
        epoch, within = divmod(position, self.num_rows)
        how = of_epoch(self._shuffles, epoch)
        if epoch != self._epoch:
            self._epoch, self._pieces = epoch, self._permuted(how.seed, epoch)
            self._ends = self._table["num_rows"][self._pieces].cumsum(dtype=np.int64)
        each = how.pieces_per_window
        number = int(np.searchsorted(self._ends, within, side="right")) // each
        first, last = number * each, min((number + 1) * each, len(self._ends))
        before = int(self._ends[first - 1]) if first else 0
        num_rows = int(self._ends[last - 1]) - before
        begin = epoch * self.num_rows + before
        # Not [seed, epoch, 0]: that is the same as [seed, epoch], which permutes the pieces.
        draw = np.random.default_rng([how.seed, epoch, 1 + number])
        return Window(
            epoch=epoch,
            begin=begin,
            end=begin + num_rows,
            pieces=self._table[self._pieces[first:last]],
            _rows=draw.permutation(num_rows),
        )

    def _permuted(self, seed: int, epoch: int) -> np.ndarray:
        """Return the table's indices in the order of an epoch, those of a group side by side."""
        groups = self._table["group"]
        firsts = np.flatnonzero(np.diff(groups, prepend=-1))
        sizes = np.diff(firsts, append=len(groups))
        order = np.random.default_rng([seed, epoch]).permutation(len(firsts))
        sizes = sizes[order]
        pieces: np.ndarray = np.arange(len(groups)) + np.repeat(
            firsts[order] - (sizes.cumsum() - sizes), sizes
        )
        return pieces
