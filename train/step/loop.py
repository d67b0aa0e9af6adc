"""The training loop: native DDP, gradient accumulation, and a loss that is right on any ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rundir.checkpoints import checkpoint_name, note_evaluation
from rundir.config import RunConfig
from rundir.control import is_asked
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.paths import RunDir
from train.data.dataset import SampleFile
from train.model.attention import row_lengths
from train.model.build import num_weights
from train.rank.group import Ranks
from train.step import checkpoint
from train.step.batch import Batch, Work, collate_rows
from train.step.bf16 import num_without_master
from train.step.evaluate import Evaluator
from train.step.feed import Feed
from train.step.mfu import model_flops
from train.step.optimizer import make_optimizer, with_own_states
from train.step.progress import StepProgress
from train.step.schedule import learning_rate, num_steps
from train.stream.stream import Stream

Result = Literal["done", "stopped"]


class Undistributed(nn.Module):
    """The stand-in for DDP in a plain run, where there is no rank to exchange gradients with.

    DDP would not work on every device anyway: no torch backend takes MPS tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """Return the module's output."""
        return self.module(*inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: gradients are never exchanged."""
        return nullcontext()


class Trainer:
    """One rank's share of the training. Every method is called by all ranks together."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run: RunDir,
        ranks: Ranks,
        events: EventWriter,
        model: DistributedDataParallel | Undistributed,
        samples: SampleFile | Stream,
        evaluator: Evaluator | None,
    ) -> None:
        self._config, self._run, self._ranks, self._events = config.train, run, ranks, events
        self._model, self._samples, self._evaluator = model, samples, evaluator
        self._trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(
            self._trainable,
            learning_rate=config.train.learning_rate,
            weight_decay=config.train.weight_decay,
            is_sharded=config.train.shard_optimizer and ranks.world_size > 1,
            in_8_bits=config.train.optimizer == "adamw-8bit",
            bf16_updates=config.train.bf16_updates,
            seed=config.train.seed,
        )
        order = samples if isinstance(samples, Stream) else None
        multiple = row_lengths(config, model.module, ranks.device)
        self._feed = Feed(samples, config, ranks.rank, ranks.world_size, order, multiple)
        self._longest = config.data.max_seq_length
        self._total_steps = num_steps(config.train, len(samples))
        self._step = 0  # steps done
        self._checkpointed: Path | None = None
        self._progress = StepProgress(config, ranks, events)

    def warm_up(self) -> None:
        """Move every gradient into DDP's buckets before anything else is in memory.

        DDP starts with one bucket for all gradients and, after the first pass, allocates buckets
        in the order in which gradients arrived (torch/nn/parallel/distributed.py,
        `_ddp_init_helper`). Gradients that are still views of the first one would keep it alive
        beside them, so they are freed in between. Gradients accumulated without communication have
        memory of their own until they have been in a bucket once. After two passes that add
        nothing, neither happens again as long as gradients are zeroed and not freed.
        """
        for _ in range(2):
            self.optimizer.zero_grad(set_to_none=True)
            self.gradients([collate_rows([])], 0.0)
        self.optimizer.zero_grad(set_to_none=False)

    def restore(self, resume_from: str | None) -> None:
        """Resume from a checkpoint folder, if given; then report what is to be trained."""
        if resume_from is not None:
            self._step = checkpoint.load(
                Path(resume_from), self._model.module, self.optimizer, self._ranks
            )
            if self._ranks.is_first and num_without_master(with_own_states(self.optimizer)):
                text = (
                    "[Rank 0] RESUME: the checkpoint has no float32 copies of its weights in "
                    "bfloat16 (train.bf16_updates=master): they are made from these"
                )
                self._events.emit("log", "line", text=text)
        if isinstance(self._samples, Stream):
            self._samples.begin(self._step)
        if self._ranks.is_first:
            self._events.emit(
                "mark",
                "train.plan",
                total_steps=self._total_steps,
                first_step=self._step,
                num_parameters=num_weights(self._model),
                num_trainable=sum(p.numel() for p in self._trainable),
                num_train_samples=len(self._samples),
                num_eval_samples=len(self._evaluator.samples) if self._evaluator else 0,
            )

    def train(self) -> Result:
        """Run all steps left, evaluations and checkpoints; return "stopped" if asked to stop."""
        self._evaluate()
        self._progress.begin(model_flops(self._model.module.model, self._longest))
        stop = False
        while self._step < self._total_steps and not stop:
            try:
                stop = self._one_step()
            except UserError:  # bad rows in streamed data: all ranks learn of them at one step
                if self._step:
                    self._keep()
                raise
            save = stop or self._is_due(self._config.checkpoint_every_steps)
            if save or self._is_due(self._config.log_every_steps):
                self._progress.report(self._step)  # fails first if the loss is NaN
            if save:
                self._save()
            if self._is_due(self._config.eval_every_steps) and self._step < self._total_steps:
                self._evaluate()
        self._progress.report(self._step)
        self._progress.end()
        self._keep()
        if stop and self._step < self._total_steps:
            return "stopped"
        self._evaluate()
        return "done"

    def announce(self, result: Result) -> None:
        """Write the mark that tells the launcher that everything is trained and saved."""
        if self._ranks.is_first:
            saved = self._checkpointed
            self._events.emit(
                "mark",
                "train.result",
                result=result,
                step=self._step,
                tokens_per_s=self._progress.total_tokens_per_s,
                mfu=self._progress.total_mfu,
                gpu_peak_bytes=self._progress.gpu_peak_bytes,
                checkpoint=None if saved is None else str(saved.relative_to(self._run.path)),
            )

    def _one_step(self) -> bool:
        """Train one step; return True if a stop was asked for, which all ranks learn together."""
        timer = self._progress.timer
        lr = learning_rate(self._config, self._step, self._total_steps)
        with timer("data"):
            batches = self._feed.step(self._step)
        with timer("comm"):
            *sums, stop = self._ranks.sum(
                [
                    *map(sum, zip(*(batch.work for batch in batches), strict=True)),
                    self._ranks.is_first and is_asked(self._run, "stop"),
                ]
            )
        work = Work(*sums)
        loss_sum = self.gradients(batches, work.num_labels)
        with timer("optimizer"):
            grad_norm = self.update(lr)
        self._step += 1
        self._ranks.pulse.stepped(self._step)
        self._progress.add(loss_sum, work, grad_norm, lr)
        return stop > 0

    def gradients(self, batches: list[Batch], num_labels: float) -> torch.Tensor:
        """Accumulate the gradient of the step's mean loss; return this rank's loss sum.

        DDP averages gradients over ranks, so the sum is scaled by world_size / num_labels: the
        result is the gradient of (sum of all losses) / (labels of all ranks and micro-batches).
        """
        scale = self._ranks.world_size / max(1.0, num_labels)
        timer = self._progress.timer
        total = torch.zeros((), device=self._ranks.device)
        for i, batch in enumerate(batches):
            is_last = i == len(batches) - 1
            sync: AbstractContextManager[None] = nullcontext() if is_last else self._model.no_sync()
            with sync:
                with timer("forward"):
                    loss_sum = self._model(*batch.arguments(self._ranks.device))
                with timer("backward"):
                    (loss_sum * scale).backward()
            total += loss_sum.detach()
        return total

    def update(self, lr: float) -> torch.Tensor:
        """Clip, take one optimizer step and zero the gradients; return their unclipped norm."""
        limit = self._config.max_grad_norm or float("inf")
        grad_norm = torch.nn.utils.clip_grad_norm_(self._trainable, limit)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # gradients stay in DDP's buckets
        return grad_norm

    def _is_due(self, every: int) -> bool:
        return every > 0 and self._step % every == 0

    def _evaluate(self) -> None:
        if self._evaluator is None:
            return
        loss, saved = self._evaluator.evaluate(self._step), self._checkpointed
        if self._ranks.is_first and saved and saved.name == checkpoint_name(self._step):
            note_evaluation(saved, loss)

    def _keep(self) -> None:
        """Save, unless a checkpoint of this step exists."""
        if self._checkpointed is None or self._checkpointed.name != checkpoint_name(self._step):
            self._save()

    def _save(self) -> None:
        is_first = self._ranks.is_first
        self._ranks.pulse.tick("checkpoint")
        span = self._events.span("checkpoint", step=self._step) if is_first else nullcontext()
        with span:
            self._checkpointed = checkpoint.save(
                self._run.checkpoints,
                self._step,
                self._model.module,
                self.optimizer,
                self._ranks,
                keep=self._config.keep_checkpoints,
            )
