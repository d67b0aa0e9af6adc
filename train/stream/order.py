"""The order of rows that are streamed: each once an epoch, a pure function of seed and position.

Groups of pieces are permuted, and what comes of it is cut into windows of so many pieces, within
which rows are permuted. So every row is where it is for any number of ranks, and can be found
without reading those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows at the positions from `begin` on, below `end`, counted through all epochs."""

    epoch: int
    begin: int
    end: int
    pieces: np.ndarray  # rows of the table, as they follow each other
    _rows: np.ndarray  # position from `begin` → row of the pieces taken together

    def places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each position, which piece its row is in, and which row of that it is."""
        rows, ends = self._rows[positions - self.begin], self.pieces["num_rows"].cumsum()
        slots = np.searchsorted(ends, rows, side="right")
        return slots, rows - (ends - self.pieces["num_rows"])[slots]


class StreamOrder:
    """Position → row. Positions go through all epochs: row `p % num_rows` of epoch `p // num_rows`.

    Takes memory for two numbers of each piece.
    """

    def __init__(self, table: np.ndarray, seed: int, pieces_per_window: int) -> None:
        self._table, self._seed, self._each = table, seed, pieces_per_window
        self.num_rows = int(table["num_rows"].sum(dtype=np.int64))
        self._epoch = -1
        self._pieces = self._ends = np.empty(0, np.int64)

    def window(self, position: int) -> Window:
        """The window that a position is in."""
        epoch, within = divmod(position, self.num_rows)
        if epoch != self._epoch:
            self._epoch, self._pieces = epoch, self._permuted(epoch)
            self._ends = self._table["num_rows"][self._pieces].cumsum(dtype=np.int64)
        number = int(np.searchsorted(self._ends, within, side="right")) // self._each
        first, last = number * self._each, min((number + 1) * self._each, len(self._ends))
        before = int(self._ends[first - 1]) if first else 0
        num_rows = int(self._ends[last - 1]) - before
        begin = epoch * self.num_rows + before
        # Not [seed, epoch, 0]: that is the same as [seed, epoch], which permutes the pieces.
        draw = np.random.default_rng([self._seed, epoch, 1 + number])
        return Window(
            epoch=epoch,
            begin=begin,
            end=begin + num_rows,
            pieces=self._table[self._pieces[first:last]],
            _rows=draw.permutation(num_rows),
        )

    def _permuted(self, epoch: int) -> np.ndarray:
        """The places in the table, those of a group side by side."""
        groups = self._table["group"]
        firsts = np.flatnonzero(np.diff(groups, prepend=-1))
        sizes = np.diff(firsts, append=len(groups))
        order = np.random.default_rng([self._seed, epoch]).permutation(len(firsts))
        sizes = sizes[order]
        found: np.ndarray = np.arange(len(groups)) + np.repeat(
            firsts[order] - (sizes.cumsum() - sizes), sizes
        )
        return found
