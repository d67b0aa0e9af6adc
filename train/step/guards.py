"""What watches over the losses of a run: bad ones while it trains, and early stopping."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ranks.group import Ranks
from rundir.checkpoints import step_of
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from train.batches.course import position_of
from train.batches.feed import Feed
from train.step.checkpoint import notes_of
from train.step.early_stop import Patience
from train.step.loss_watch import BadLoss
from train.step.on_bad_loss import BadLosses
from train.step.step_samples import Row, rows_of_step


class Guards:
    """Bad losses, and patience with the held-out loss; both are kept with each checkpoint."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run: RunDir,
        ranks: Ranks,
        events: EventWriter,
        feed: Feed,
        loss: nn.Module,
    ) -> None:
        def find(step: int) -> list[Row]:
            return rows_of_step(step, feed=feed, config=config, run=run, ranks=ranks, loss=loss)

        self._ranks, self._events, self._course = ranks, events, feed.course
        self.losses = BadLosses(config.train, run, ranks, events, find, feed.course)
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

    @property
    def is_over(self) -> bool:
        """True if the held-out loss has not improved for long enough."""
        return self.patience.is_out

    def tell_early_stop(self, step: int) -> None:
        """Write the mark of a run that ends early after `step` steps."""
        if self._ranks.is_first:
            self._events.emit(
                "mark",
                "early_stop",
                step=step,
                best_step=self.patience.best_step,
                best_loss=self.patience.best_loss,
                num_evaluations=self.patience.num_since,
            )


def _without_later(state: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the state without steps to skip after `step`, which have other rows now."""
    return state | {"skipped": [step_ for step_ in state.get("skipped", ()) if step_ <= step]}
