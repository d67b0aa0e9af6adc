"""The steps at which answers are kept, and which of them a run has the time for."""

from __future__ import annotations

import math
from collections.abc import Iterator

_FIRST = (0, 10, 25, 50, 100, 150, 200, 250, 500, 750, 1000, 1500, 2000)
_EVERY = 1000  # after those


def scheduled(first: int, last: int) -> Iterator[int]:
    """Yield the steps from `first` to `last` at which answers are due; both ends are among them."""
    yield first
    for step in (*_FIRST, *range(_FIRST[-1] + _EVERY, last, _EVERY)):
        if first < step < last:
            yield step
    if last > first:
        yield last


class Budget:
    """The share of a run's time that its snapshots may take.

    Where it is short, snapshots are left out, evenly along the schedule: no answer is cut. The
    first and the last are always taken.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._num_left_out = 0  # since the last one taken
        self.spent_s, self.num_taken = 0.0, 0

    def takes(self, num_due: int, trained_s: float, done: float) -> bool:
        """Return whether to take the next one of `num_due`, of which the last is always taken.

        `trained_s` seconds of training were the share `done` of all steps.
        """
        if not self.num_taken or num_due <= 1:
            return True
        cost_s = self.spent_s / self.num_taken
        all_s = trained_s / done if done else 0.0
        affordable = self._share * all_s / max(cost_s, 1e-9) - self.num_taken - 1 + 1e-6
        if affordable >= 1 and self._num_left_out + 1 >= math.ceil((num_due - 1) / affordable):
            return True
        self._num_left_out += 1
        return False

    def spent(self, seconds: float) -> None:
        """Note what a snapshot has cost."""
        self.spent_s, self.num_taken, self._num_left_out = (
            self.spent_s + seconds,
            self.num_taken + 1,
            0,
        )
