"""What a rank keeps of the training: checkpoints, the held-out loss of each, and ways back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from ranks.group import Ranks
from rundir.checkpoints import checkpoint_name, note_evaluation
from rundir.config import RunConfig
from rundir.paths import RunDir
from train.evaluation.all_sets import EvaluationSets
from train.step import checkpoint
from train.step.best import choose
from train.step.guards import Guards
from train.step.loss_watch import BadLoss
from train.update.bf16 import num_without_master
from train.update.optimizer import with_own_states


class Keeper:
    """One rank's share of keeping; all ranks call a method together, unless it says otherwise."""

    def __init__(
        self,
        *,
        run: RunDir,
        ranks: Ranks,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        evaluator: EvaluationSets | None,
        guards: Guards,
    ) -> None:
        self._run, self._ranks = run, ranks
        self._model, self._optimizer = model, optimizer
        self._evaluator, self._guards = evaluator, guards
        self.saved: Path | None = None  # the run's last checkpoint
        self._resumed_from: Path | None = None
        # The last step that was evaluated, with its held-out loss.
        self._evaluated: tuple[int, float | None] = (-1, None)

    def resume(self, path: Path, eval_every_steps: int) -> int:
        """Load a checkpoint; return the steps it has trained."""
        self._resumed_from = path
        step = checkpoint.load(path, self._model, self._optimizer, self._ranks)
        self._guards.restore(path)
        is_own = path.parent == self._run.checkpoints
        if is_own and eval_every_steps > 0 and step % eval_every_steps == 0:
            # An attempt that ended in between has saved but not evaluated it. Others stay
            # without, as in a run that nothing has interrupted: it exports the same weights.
            self.saved = path
        if self._ranks.is_first and num_without_master(with_own_states(self._optimizer)):
            self._ranks.say(
                "RESUME: the checkpoint has no float32 copies of its weights in bfloat16 "
                "(train.bf16_updates=master): they are made from these"
            )
        return step

    @property
    def evaluated_step(self) -> int:
        """The step that was evaluated last; -1: none."""
        return self._evaluated[0]

    @property
    def way_back(self) -> Path | None:
        """The checkpoint that a bad loss goes back to."""
        return self.saved or self._resumed_from

    def go_back(self, bad: BadLoss) -> int:
        """Load the checkpoint before a bad loss, whose step is left out then; return its step."""
        before = self.way_back
        assert before is not None
        with_own_states(self._optimizer).state.clear()
        step = checkpoint.load(before, self._model, self._optimizer, self._ranks)
        self._evaluated = (-1, None)
        self._guards.go_back(before, bad)
        return step

    def evaluate(self, step: int, num_kept: int, *, is_due: bool) -> float | None:
        """Evaluate, unless `step` has been; return the loss, or None without held-out data.

        Early stopping counts those that are due. The best is kept: else it could not be exported.
        """
        if self._evaluator is None:
            return None
        if self._evaluated[0] != step:
            self._evaluated = step, self._evaluator.evaluate(step)
        loss, patience = self._evaluated[1], self._guards.patience
        if loss is None:
            return None
        if step > 0 and is_due and patience.seen(step, loss) and patience.is_on:
            self.keep(step, num_kept)
        if self._ranks.is_first and self.saved and self.is_kept(step):
            note_evaluation(self.saved, loss)
        return loss

    def is_kept(self, step: int) -> bool:
        """Return whether the last checkpoint is of `step`; any rank may ask."""
        return self.saved is not None and self.saved.name == checkpoint_name(step)

    def lacking(self, step: int) -> str:
        """Return why there is no room for a checkpoint, or ""."""
        folder = self._run.checkpoints
        return checkpoint.lacking(folder, step, self._model, self._optimizer, self._ranks)

    def keep(self, step: int, num_kept: int) -> None:
        """Save, unless a checkpoint of `step` exists; the last `num_kept` stay."""
        if self.is_kept(step):
            return
        is_first = self._ranks.is_first
        self._ranks.pulse.tick("checkpoint")
        with self._ranks.events.span("checkpoint", step=step) if is_first else nullcontext():
            self.saved = checkpoint.save(
                self._run.checkpoints,
                step,
                self._model,
                self._optimizer,
                self._ranks,
                keep=num_kept,
                notes=self._guards.notes(step),
            )

    def take_best(self, config: RunConfig, last_step: int) -> None:
        """Load the weights that are to be exported: on rank 0 alone, after the last step."""
        choice = choose(config, self._run, last_step)
        if choice.checkpoint is not None:
            checkpoint.load_weights(choice.checkpoint, self._model)
        fields = asdict(choice)
        del fields["checkpoint"]
        self._ranks.mark("export.choice", **fields)
