"""Evaluation on held-out data: loss, and generated answers compared; every sample exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rundir.config import RunConfig
from rundir.data_paths import name_of
from rundir.paths import RunDir
from train.evaluation.answer_snapshot import Snapshots
from train.evaluation.answering import Answerer, spread_evenly
from train.model.build import inference

_TELL_S = 30.0

# Of a batch: its samples, their loss sum, their labels.
Losses = tuple[list[int], float, int]


class Evaluator:
    """Evaluates a model on held-out samples, divided among the ranks."""

    def __init__(
        self, answerer: Answerer, run: RunDir, config: RunConfig, *, most: int, name: str = ""
    ) -> None:
        """Evaluate the set called `name`, by default the held-out data.

        `most`: the number of samples, spread evenly; 0: all.
        """
        self._answerer, self.name = answerer, name
        self.samples, self._ranks = answerer.samples, answerer.ranks
        self._is_per_example = config.scoring is not None and config.scoring.per_example
        self._generate = config.train.eval_generate
        dataset = name or name_of(config.data.eval_path or config.data.path)
        self._snapshots = Snapshots(run, dataset, answerer.data)
        self._batch_size = config.train.micro_batch_size
        self._told_mono = 0.0
        self.examples: list[dict[str, Any]] = []  # of the last evaluation, on rank 0
        chosen = spread_evenly(len(self.samples), most)
        self.num_samples = len(chosen)
        self._own = chosen[self._ranks.rank :: self._ranks.world_size]

    def evaluate(self, step: int) -> float:
        """Write the `eval` metric, and the snapshot of answers if they are generated.

        Returns the mean loss per label token, over the samples of all ranks.
        """
        self._ranks.pulse.tick("eval")
        self._told_mono = began_mono = time.monotonic()
        with self._ranks.events.span("eval", step=step), inference(self._answerer.model):
            own = self._losses()
            sums = [sum(loss for _, loss, _ in own), sum(num for _, _, num in own)]
            loss_sum, num_labels = self._ranks.sum(sums)
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
                self._ranks.events.emit("metric", "eval", **fields)
            else:
                counts = {"num_samples": self.num_samples, "num_labels": int(num_labels)}
                self._ranks.events.emit("metric", "eval.set", set=self.name, **fields, **counts)
        return loss

    def _write(self, step: int, examples: Sequence[dict[str, Any]], seconds: float) -> None:
        """Write the snapshot; training goes on without it."""
        with self._ranks.events.span("evolution", step=step):
            try:
                self._snapshots.write(step, examples, seconds=round(seconds, 3))
            except OSError as error:
                self._ranks.mark("evolution.missing", step=step, why=str(error))

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
            self._ranks.say(f"EVAL: {self.name or 'held-out'}: {share}")

    def _losses(self) -> list[Losses]:
        """Return each batch of this rank's share: its samples, their loss sum, their labels."""
        is_single = self._is_per_example or self._generate
        batches = self._batches("loss", 1 if is_single else self._batch_size)
        return [(indices, *self._answerer.loss_of(indices)) for indices in batches]

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
