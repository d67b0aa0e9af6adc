"""Early stopping: the end of a run whose held-out loss has not improved for some evaluations."""

from __future__ import annotations

import math
from typing import Any


class Patience:
    """The best held-out loss so far, and how many evaluations ago; the same on every rank."""

    def __init__(self, most: int) -> None:
        """`most`: train.early_stop_evaluations; 0: it never runs out."""
        self._most = most
        self.best_step, self.best_loss = 0, math.inf
        self.num_since, self._last_step = 0, 0

    @property
    def is_on(self) -> bool:
        """True if a run may stop early."""
        return self._most > 0

    @property
    def is_out(self) -> bool:
        """True if the run is to end."""
        return self.is_on and self.num_since >= self._most

    def seen(self, step: int, loss: float) -> bool:
        """Take in the evaluation after `step` steps; return whether it is the best so far.

        One of a step that has been seen counts once: a resumed run begins with it.
        """
        if step <= self._last_step:
            return False
        self._last_step = step
        if loss < self.best_loss:  # NaN is not
            self.best_step, self.best_loss, self.num_since = step, loss, 0
            return True
        self.num_since += 1
        return False

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, for JSON."""
        return {
            "best_step": self.best_step,
            "best_loss": None if math.isinf(self.best_loss) else self.best_loss,
            "num_since": self.num_since,
            "last_step": self._last_step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on counting where `state` was taken."""
        best = state.get("best_loss")
        self.best_loss = math.inf if best is None else float(best)
        self.best_step = int(state.get("best_step", 0))
        self.num_since = int(state.get("num_since", 0))
        self._last_step = int(state.get("last_step", 0))
