"""The training loop: native DDP, gradient accumulation, and a loss that is right on any ranks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.paths import RunDir
from train.batches.batch import Batch, Work, collate_rows
from train.batches.feed import Feed
from train.evaluation.all_sets import EvaluationSets
from train.model.build import num_weights
from train.step.checkpoint_keeper import Keeper
from train.step.guards import Guards
from train.step.live_controls import STOP, Controls
from train.step.mfu import model_flops
from train.step.progress import StepProgress
from train.stream.streamed_samples import StreamedSamples
from train.update.gradients import clip_gradients, fill_buckets
from train.update.optimizer import learning_rate, make_optimizer

Result = Literal["done", "stopped"]


class Trainer:
    """One rank's share of the training. Every method is called by all ranks together."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run: RunDir,
        ranks: Ranks,
        model: Any,  # in DistributedDataParallel, except in a plain run
        feed: Feed,
        evaluator: EvaluationSets | None,
    ) -> None:
        self.settings = config.train  # as they are now: some can change while it runs
        self._config, self._run, self._ranks = config, run, ranks
        self._model, self._feed, self._evaluator = model, feed, evaluator
        self._is_wrapped = isinstance(model, DistributedDataParallel)
        self._loss: Any = model.module if self._is_wrapped else model
        self._trainable = [p for p in model.parameters() if p.requires_grad]
        is_sharded = config.train.shard_optimizer and ranks.world_size > 1
        self.optimizer = make_optimizer(model, config.train, is_sharded=is_sharded)
        self._longest = config.data.max_seq_length
        self.total_steps = feed.course.num_steps
        self._step = 0  # steps done
        self._guards = Guards(
            config=config,
            run=run,
            ranks=ranks,
            feed=feed,
            loss=self._loss,
        )
        self._keeper = Keeper(
            run=run,
            ranks=ranks,
            model=self._loss,
            optimizer=self.optimizer,
            evaluator=evaluator,
            guards=self._guards,
        )
        self._tracker = evaluator.tracker if evaluator is not None else None
        self.progress = StepProgress(config, ranks)
        if not config.model.compile:  # a compiled block would be compiled anew for the hook
            self.progress.watch_gradient(self._trainable[0])
        self._controls = Controls(config, run, ranks)

    def warm_up(self) -> None:
        """Move every gradient into DDP's buckets before anything else is in memory."""
        fill_buckets(self.optimizer, lambda: self.gradients([collate_rows([])], 0.0))

    def restore(self, resume_from: str | None) -> None:
        """Resume from the checkpoint folder that the feed's course goes on from, if from one."""
        if resume_from is not None:
            every = self.settings.eval_every_steps
            self._step = self._keeper.resume(Path(resume_from), every)
        if isinstance(self._feed.samples, StreamedSamples):
            self._feed.samples.begin(self._step)
        self._ranks.mark(
            "train.plan",
            total_steps=self.total_steps,
            first_step=self._step,
            num_parameters=num_weights(self._model),
            num_trainable=sum(p.numel() for p in self._trainable),
            num_train_samples=self._feed.course.num_rows,
            num_eval_samples=self._evaluator.num_samples if self._evaluator else 0,
        )

    def train(self) -> Result:
        """Run all steps left, evaluations and checkpoints; return "stopped" if asked to stop."""
        self._begin()
        stop, patience = False, self._guards.patience
        while self._step < self.total_steps and not stop and not patience.is_out:
            try:
                asked = self._one_step()
            except UserError:  # bad rows in streamed data: all ranks learn of them at one step
                if self._step:
                    self._keep()
                raise
            stop = bool(asked & STOP)
            save = stop or self._is_due(self.settings.checkpoint_every_steps)
            is_last = self._step == self.total_steps
            evaluate = self._is_due(self.settings.eval_every_steps) and not is_last
            # Before it is saved, as the best too: one of a bad loss would take a good one's place.
            if self._has_gone_back(
                is_reported=save or (evaluate and self._guards.losses.goes_back)
            ):
                continue
            if save:
                self._keep()
            if evaluate:
                self.evaluate_now()
            if self._step < self.total_steps:
                self._follow()
            stop |= self._controls.stepped(asked, self)
        self._controls.end()
        self._has_gone_back(
            is_reported=True
        )  # nothing, unless a stop came while the run was paused
        self.progress.end()
        self._keep()
        if patience.is_out:
            self._guards.tell_early_stop(self._step)
        elif stop and self._step < self.total_steps:
            return "stopped"
        self.evaluate_now()
        self._follow(has_ended=True)
        return "done"

    def announce(self, result: Result) -> None:
        """Write the mark that tells the launcher that everything is trained and saved."""
        saved = self._keeper.saved
        self._ranks.mark(
            "train.result",
            result=result,
            step=self._step,
            tokens_per_s=self.progress.total_tokens_per_s,
            mfu=self.progress.total_mfu,
            hfu=self.progress.total_hfu,
            gpu_peak_bytes=self.progress.gpu_peak_bytes,
            checkpoint=None if saved is None else str(saved.relative_to(self._run.path)),
        )

    def take_best(self) -> None:
        """Load the weights that are to be exported: on rank 0, after the last step."""
        self._keeper.take_best(self._config, self._step)

    @property
    def step(self) -> int:
        """Steps trained."""
        return self._step

    def save_now(self) -> str:
        """Save, unless there is a checkpoint of this step; return why there is no room, or ""."""
        if self._keeper.is_kept(self._step):
            return ""
        why = self._keeper.lacking(self._step)
        if not why and self._has_gone_back(is_reported=True):
            return f"the last loss was bad: the run has gone back to step {self._step}"
        if not why:
            self._keep()
        return why

    def evaluate_now(self) -> float | None:
        """Evaluate, unless this step has been; return the loss, or None without held-out data."""
        is_due = self._is_due(self.settings.eval_every_steps)
        return self._keeper.evaluate(self._step, self.settings.keep_checkpoints, is_due=is_due)

    def _one_step(self) -> int:
        """Train one step; return what was asked for meanwhile, which all ranks learn together."""
        timer = self.progress.timer
        lr = learning_rate(self.settings, self._step, self.total_steps)
        if self._step + 1 in self._guards.losses.skipped:
            self._step += 1
            return 0
        with timer("data"):
            batches = self._feed.step(self._step)
        with timer("comm"):
            sums = map(sum, zip(*(batch.work for batch in batches), strict=True))
            *totals, asked = self._ranks.sum([*sums, self._controls.read()])
        work = Work(*totals)
        loss_sum = self.gradients(batches, work.num_labels)
        if self._guards.losses.refuses(self._step + 1, loss_sum, work, self._trainable):
            self.optimizer.zero_grad(set_to_none=False)
            self._step += 1
            self._ranks.pulse.stepped(self._step)
            return int(asked)
        with timer("optimizer"):
            grad_norm = self.update(lr)
        self._step += 1
        self._ranks.pulse.stepped(self._step)
        self.progress.add(self._step, loss_sum, work, grad_norm, lr)
        # Streamed rows are read ahead by others, and bad ones end the step that they belong to.
        if self._step < self.total_steps and not isinstance(self._feed.samples, StreamedSamples):
            with timer("data"):  # before a report waits for what the GPU is still computing
                self._feed.prepare(self._step)
        return int(asked)

    def gradients(self, batches: list[Batch], num_labels: float) -> torch.Tensor:
        """Accumulate the gradient of the step's mean loss; return this rank's loss sum.

        DDP averages gradients over ranks, so the sum is scaled by world_size / num_labels: the
        result is the gradient of (sum of all losses) / (labels of all ranks and micro-batches).
        """
        scale = self._ranks.world_size / max(1.0, num_labels)
        timer = self.progress.timer
        total = torch.zeros((), device=self._ranks.device)
        for i, batch in enumerate(batches):
            is_last = i == len(batches) - 1
            with self._model.no_sync() if self._is_wrapped and not is_last else nullcontext():
                with timer("forward"):
                    loss_sum = self._model(*batch.arguments(self._ranks.device))
                with timer("backward"):
                    (loss_sum * scale).backward()
            total += loss_sum.detach()
        return total

    def update(self, lr: float) -> torch.Tensor:
        """Clip, take one optimizer step and zero the gradients; return their unclipped norm."""
        grad_norm = clip_gradients(self._trainable, self.settings.max_grad_norm or float("inf"))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # gradients stay in DDP's buckets
        return grad_norm

    def _is_due(self, every: int) -> bool:
        return every > 0 and self._step % every == 0

    def _begin(self) -> None:
        """Evaluate what there is before the first step, and start the clock."""
        if self._guards.losses.goes_back and not self._keeper.way_back:
            self._keep()  # to go back to, until there is a later one
        self.evaluate_now()
        if self._tracker is not None:
            self._tracker.begin(self._step, self.total_steps)
            self._follow()
        self.progress.begin(model_flops(self._loss.model, self._longest))

    def _has_gone_back(self, *, is_reported: bool) -> bool:
        """Report the last steps, if it is time; return True if one was bad, and they are undone."""
        is_last = self._step == self.total_steps
        if not (is_reported or is_last or self._is_due(self.settings.log_every_steps)):
            return False
        bad = self._guards.losses.reported(self.progress.report(self._step))
        if bad is None:
            return False
        self._step = self._keeper.go_back(bad)
        return True

    def _follow(self, *, has_ended: bool = False) -> None:
        """Keep some answers of the model, if they are due."""
        if self._tracker is not None:
            is_evaluated = self._keeper.evaluated_step == self._step
            is_answered = is_evaluated and self.settings.eval_generate
            self._tracker.follow(self._step, has_ended=has_ended, is_answered=is_answered)

    def _keep(self) -> None:
        self._keeper.keep(self._step, self.settings.keep_checkpoints)
