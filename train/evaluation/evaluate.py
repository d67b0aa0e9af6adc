"""Evaluation on held-out data: loss, and generated answers compared; every sample exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.data_paths import name_of
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import PreparedData
from train.batches.batch import collate
from train.data.dataset import SampleFile
from train.evaluation.answering import Answerer, spread_evenly
from train.evaluation.snapshot import Snapshots
from train.model.build import inference
from train.model.loss import SummedLoss

_TELL_S = 30.0

# Of a batch: its samples, their loss sum, their labels.
Losses = tuple[list[int], float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What is evaluated: the held-out data or, with a `name`, the set that is called so."""

    data: PreparedData
    most: int = 0  # samples, spread evenly; 0: all
    name: str = ""
    per_example: bool = False  # keep the loss of each sample


class Evaluator:
    """Evaluates the model of `loss` on held-out samples, divided among the ranks."""

    def __init__(
        self,
        *,
        loss: SummedLoss,
        held_out: HeldOut,
        tokenizer: Any,
        ranks: Ranks,
        events: EventWriter,
        run: RunDir,
        config: RunConfig,
    ) -> None:
        self.samples = samples = SampleFile(held_out.data)
        model: Any = loss.model
        self._summed_loss, self._model = loss, model
        self._ranks, self._events, self._run = ranks, events, run
        self.name, self._is_per_example = held_out.name, held_out.per_example
        self._generate = config.train.eval_generate
        dataset = self.name or name_of(config.data.eval_path or config.data.path)
        self._snapshots = Snapshots(run, dataset, held_out.data)
        self._batch_size = config.train.micro_batch_size
        self._told_mono = 0.0
        self.examples: list[dict[str, Any]] = []  # of the last evaluation, on rank 0
        end_id = held_out.data.end_token_id
        self._answerer = Answerer(samples, model, tokenizer, end_id, ranks.device)
        chosen = spread_evenly(len(samples), held_out.most)
        self.num_samples = len(chosen)
        self._own = chosen[ranks.rank :: ranks.world_size]

    def evaluate(self, step: int) -> float:
        """Write the `eval` metric, and the snapshot of answers if they are generated.

        Returns the mean loss per label token, over the samples of all ranks.
        """
        self._ranks.pulse.tick("eval")
        self._told_mono = began_mono = time.monotonic()
        with self._events.span("eval", step=step), inference(self._model):
            own = self._losses()
            loss_sum, num_labels = self._ranks.sum([sum(one[1] for one in own), sum_labels(own)])
            examples = self._examples(step, _means(own)) if self._generate else []
        exact_match = None
        if self._generate:
            correct, count = self._ranks.sum(
                [sum(example["exact_match"] for example in examples), len(examples)]
            )
            exact_match = correct / count if count else None
            gathered = [row for rows in self._ranks.gather(examples) for row in rows]
            self.examples = gathered
            if self._ranks.is_first:
                self._write(step, gathered, time.monotonic() - began_mono)
        loss = loss_sum / max(1.0, num_labels)
        if self._is_per_example:
            self._join_losses(own)
        if self._ranks.is_first:
            fields = {"step": step, "loss": loss, "exact_match": exact_match}
            if not self.name:
                self._events.emit("metric", "eval", **fields)
            else:
                counts = {"num_samples": self.num_samples, "num_labels": int(num_labels)}
                self._events.emit("metric", "eval.set", set=self.name, **fields, **counts)
        return loss

    def _write(self, step: int, examples: Sequence[dict[str, Any]], seconds: float) -> None:
        """Write the snapshot; training goes on without it."""
        with self._events.span("evolution", step=step):
            try:
                self._snapshots.write(step, examples, seconds=round(seconds, 3))
            except OSError as error:
                self._events.emit("mark", "evolution.missing", step=step, why=str(error))

    def _join_losses(self, own: Sequence[Losses]) -> None:
        """Add the loss of each sample to its example, or make one, on rank 0."""
        by_example = {row["example_id"]: row for row in self.examples}
        gathered = [losses for some in self._ranks.gather(list(own)) for losses in some]
        for indices, loss_sum, num_labels in gathered:
            (index,) = indices
            prompt, expected = self.samples.texts(index)
            row = by_example.get(index, {"example_id": index, "input": prompt})
            row = {"expected_output": expected, **row}
            by_example[index] = row | {
                "loss": loss_sum / max(1, num_labels),
                "num_labels": num_labels,
            }
        self.examples = [by_example[index] for index in sorted(by_example)]

    def _batches(self, what: str, size: int) -> Iterator[list[int]]:
        for start in range(0, len(self._own), size):
            self._ranks.pulse.tick("eval")
            yield list(self._own[start : start + size])
            self._tell(what, min(len(self._own), start + size))

    def _tell(self, what: str, num_done: int) -> None:
        """Say how far a long evaluation is."""
        if self._ranks.is_first and time.monotonic() - self._told_mono > _TELL_S:
            self._told_mono = time.monotonic()
            share = f"{what}, {num_done:,} of its {len(self._own):,} samples done"
            text = f"[Rank 0] EVAL: {self.name or 'held-out'}: {share}"
            self._events.emit("log", "line", text=text)

    def _losses(self) -> list[Losses]:
        """Return each batch of this rank's share: its samples, their loss sum, their labels."""
        losses = []
        is_single = self._is_per_example or self._generate
        for indices in self._batches("loss", 1 if is_single else self._batch_size):
            batch = collate([self.samples[i] for i in indices])
            loss_sum = float(self._summed_loss(*batch.arguments(self._ranks.device)))
            losses.append((indices, loss_sum, batch.num_label_tokens))
        return losses

    def _examples(self, step: int, losses: dict[int, float]) -> list[dict[str, Any]]:
        """Return this rank's share, answered greedily, in the fields of a snapshot."""
        examples = []
        for batch in self._batches("answers", self._batch_size):
            if indices := [index for index in batch if self._answerer.has_prompt(index)]:
                examples += self._answerer.examples(indices, step, losses)
        return examples


def _means(losses: Sequence[Losses]) -> dict[int, float]:
    """Return the mean loss of each sample that was a batch by itself."""
    return {
        indices[0]: loss_sum / max(1, num) for indices, loss_sum, num in losses if len(indices) == 1
    }


def sum_labels(losses: Sequence[Losses]) -> int:
    """Return the label tokens of batches."""
    return sum(num for _, _, num in losses)
