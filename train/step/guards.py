"""What watches over the losses of a run: bad ones while it trains, and early stopping.

A run stops early if its held-out loss has not improved for some evaluations.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ranks.group import Ranks
from rundir.checkpoints import step_of
from rundir.config import RunConfig
from rundir.paths import RunDir
from train.batches.course import position_of
from train.batches.feed import Feed
from train.step.checkpoint import notes_of
from train.step.loss_watch import BadLoss
from train.step.on_bad_loss import BadLosses
from train.step.step_samples import Row, rows_of_step


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


class Guards:
    """Bad losses, and patience with the held-out loss; both are kept with each checkpoint."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run: RunDir,
        ranks: Ranks,
        feed: Feed,
        loss: nn.Module,
    ) -> None:
        def find(step: int) -> list[Row]:
            return rows_of_step(step, feed=feed, config=config, run=run, ranks=ranks, loss=loss)

        self._ranks, self._course = ranks, feed.course
        self.losses = BadLosses(config.train, run, ranks, find, feed.course)
        self.patience = Patience(config.train.early_stop_evaluations)

    def notes(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint after `step` steps keeps."""
        return {
            "bad_losses": self.losses.state(),
            "early_stop": self.patience.state(),
            "position": asdict(self._course.position(step)),
        }

    def restore(self, checkpoint: Path) -> None:
        """Go on from what a checkpoint has kept, if it has."""
        with suppress(OSError, ValueError):
            notes = notes_of(checkpoint)
            was = position_of(checkpoint, self._course.num_rows)
            state = notes.get("bad_losses", {})
            if (was.batch_size, was.draws) != (self._course.batch_size, self._course.draws):
                state = _without_later(state, step_of(checkpoint))
            self.losses.restore(state, was.batch_size)
            self.patience.restore(notes.get("early_stop", {}))

    def go_back(self, checkpoint: Path, bad: BadLoss) -> None:
        """Go on from a checkpoint, without the step of the bad loss."""
        self.restore(checkpoint)
        self.losses.skipped.add(bad.step)

    def tell_early_stop(self, step: int) -> None:
        """Write the mark of a run that ends early after `step` steps."""
        self._ranks.mark(
            "early_stop",
            step=step,
            best_step=self.patience.best_step,
            best_loss=self.patience.best_loss,
            num_evaluations=self.patience.num_since,
        )


def _without_later(state: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the state without steps to skip after `step`, which have other rows now."""
    return state | {"skipped": [step_ for step_ in state.get("skipped", ()) if step_ <= step]}
