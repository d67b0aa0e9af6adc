"""The answer to a bad loss (train.on_bad_loss), the same on all ranks: they share the loss.

warn: losses are judged when they are reported, which costs nothing; one that is no number ends the
run all the same. rollback: likewise, and the weights go back. stop and skip: each loss is judged
before its update, for which the ranks add it up, and wait for the device, once more each step.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ranks.group import Ranks
from rundir.config import TrainConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, shown
from train.batches.batch import Work
from train.batches.course import Course
from train.step.loss_watch import BadLoss, LossWatch
from train.step.step_samples import Row, row_texts
from train.update.gradients import gradient_norm

MOST_ROLLBACKS = 3
MOST_IN_A_ROW = 10  # steps skipped one after another: then it is not the data
_MOST_LISTED, _MOST_SAID = 64, 3  # samples, in the event and in words

Find = Callable[[int], list[Row]]  # the rows of a step (from 0); called by all ranks


class BadLosses:
    """The losses of a run, and what is done about bad ones. Called by all ranks together."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        ranks: Ranks,
        find: Find,
        course: Course,
    ) -> None:
        self._config, self._run, self._ranks = config, run, ranks
        self._course = course
        self._find, self._answer = find, config.on_bad_loss
        self._watch = LossWatch()
        self._num_in_a_row = 0
        self.skipped: set[int] = set()  # steps (from 1) that are left out after going back

    @property
    def goes_back(self) -> bool:
        """True if a checkpoint is needed to go back to."""
        return self._answer == "rollback"

    def refuses(
        self, step: int, loss_sum: torch.Tensor, work: Work, trained: Sequence[torch.Tensor]
    ) -> bool:
        """Return whether the update of `step` (from 1) is to be left out.

        Raises UserError if the run is to stop before it.
        """
        if self._answer not in ("stop", "skip") or not work.num_labels:
            return False
        (total,) = self._ranks.sum([float(loss_sum)])
        loss = total / work.num_labels
        bad = self._judged(step, loss) or _of_gradient(step, trained)
        if bad is None:
            self._num_in_a_row = 0
            self._watch.remember(loss)
            return False
        self._num_in_a_row += 1
        if self._answer == "stop":
            raise self._stopped(bad, self._tell(bad, "stop"))
        rows = self._tell(bad, "skip")
        if self._num_in_a_row >= MOST_IN_A_ROW:
            raise self._stopped(bad, rows, f"; {MOST_IN_A_ROW} steps in a row were skipped")
        return True

    def reported(self, losses: Sequence[tuple[int, float]]) -> BadLoss | None:
        """Take in the losses of the last steps; return the one because of which to go back.

        Raises UserError if one of them is to end the run.
        """
        for step, loss in losses if self._answer in ("warn", "rollback") else ():
            bad = self._judged(step, loss)
            if bad is None:
                self._watch.remember(loss)
                continue
            if self.goes_back:
                rows = self._tell(bad, "rollback")
                if len(self.skipped) >= MOST_ROLLBACKS:
                    what = f"; it has gone back {MOST_ROLLBACKS} times already"
                    raise self._stopped(bad, rows, what)
                return bad
            is_new = self._watch.is_new(bad)
            rows = self._tell(bad, "warn" if bad.is_number else "stop") if is_new else []
            if not bad.is_number:
                raise self._stopped(bad, rows)
            self._watch.remember(loss, is_bad=True)
        return None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, so that a resumed run judges alike."""
        return {"losses": self._watch.state(), "skipped": sorted(self.skipped)}

    def restore(self, state: dict[str, Any], batch_size: int) -> None:
        """Go on where `state` was taken, in steps of `batch_size`; what is skipped stays so."""
        noise = math.sqrt(batch_size / self._course.batch_size)
        self._watch.restore(state.get("losses", {}), noise)
        self.skipped |= set(state.get("skipped", ()))

    def _judged(self, step: int, loss: float) -> BadLoss | None:
        """Return whether the loss of `step` (from 1) is bad; the last step may have few rows."""
        num_rows = max(1, len(self._course.rows(step - 1)))
        return self._watch.judge(step, loss, math.sqrt(self._course.batch_size / num_rows))

    def _tell(self, bad: BadLoss, answer: str) -> list[Row]:
        rows = self._find(bad.step - 1)
        self._ranks.mark(
            "loss.bad",
            step=bad.step,
            loss=bad.loss,
            usual=bad.usual,
            limit=bad.limit,
            answer=answer,
            text=f"{bad}; its samples: {row_texts(rows, _MOST_SAID)}",
            num_samples=len(rows),
            samples=rows[:_MOST_LISTED],
        )
        return rows

    def _stopped(self, bad: BadLoss, rows: list[Row], more: str = "") -> UserError:
        """Return the error that ends the run on every rank; rank 0's is the one that is shown."""
        samples = f"; its samples: {row_texts(rows, _MOST_SAID)}" if rows else ""
        rate = f"a lower train.learning_rate (now {self._config.learning_rate:g})"
        run = shlex.quote(shown(self._run.path))
        return UserError(
            f"{bad}{more}{samples}",
            do=f"look at these rows; {rate} may help, or data without empty answers; "
            f"--set train.on_bad_loss=skip leaves such steps out; ./airlock doctor {run}",
            code=ExitCode.RANK_FAILED,
        )


def _of_gradient(step: int, trained: Sequence[torch.Tensor]) -> BadLoss | None:
    """Return what is wrong with the gradient of a good loss: the same on every rank."""
    norm = float(gradient_norm(trained))
    return None if math.isfinite(norm) else BadLoss(step, norm, what="gradient")
