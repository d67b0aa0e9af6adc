"""The evolution tracker: a few held-out prompts, answered again and again as the model learns.

All ranks answer, each its share, at steps that all know and have the time for. Whatever goes wrong,
training goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rundir.config import RunConfig
from rundir.data_paths import name_of
from rundir.paths import RunDir
from train.evaluation.answer_snapshot import Snapshots
from train.evaluation.answering import Answerer, spread_evenly
from train.model.build import inference

_FIRST = (0, 10, 25, 50, 100, 150, 200, 250, 500, 750, 1000, 1500, 2000)
_EVERY = 1000  # after those
_AT_ONCE = 4  # prompts


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


class AnswerTracker:
    """The tracker of one rank; every method is called by all ranks together."""

    def __init__(self, answerer: Answerer, run: RunDir, config: RunConfig) -> None:
        self._answerer, self._ranks = answerer, answerer.ranks
        self._batches = self._batched(config)
        self._share = config.train.evolution_share
        self._budget = Budget(self._share)
        dataset = name_of(config.data.eval_path or config.data.path)
        self._snapshots = Snapshots(run, dataset, answerer.data)
        self._due: list[int] = []
        self._left_out: list[int] = []
        self._has_reported = False
        self._first = self._last = 0
        self._taken = -1  # the last step with a snapshot
        self._began_mono = 0.0

    def _batched(self, config: RunConfig) -> list[list[int]]:
        """Return the prompts that are answered at once: no more tokens than a rank trains on.

        The same on any number of ranks: with other neighbours, and so other padding, an answer
        may differ.
        """
        most = config.train.micro_batch_size * config.data.max_seq_length
        batches: list[list[int]] = []
        longest, samples = 0, self._answerer.samples
        for index in spread_evenly(len(samples), config.train.evolution_prompts):
            if not self._answerer.has_prompt(index):
                continue
            num_tokens = samples.length(index)
            longest = max(longest, num_tokens)
            num_then = len(batches[-1]) + 1 if batches else 0
            if not batches or num_then > _AT_ONCE or num_then * longest > most:
                batches.append([])
                longest = num_tokens
            batches[-1].append(index)
        return batches

    def begin(self, first: int, last: int) -> None:
        """Set out from `first` trained steps to `last`."""
        self._first, self._last = first, last
        self._due = list(scheduled(first, last)) if self._batches else []
        self._began_mono = time.monotonic()

    def follow(self, step: int, *, has_ended: bool = False, is_answered: bool = False) -> None:
        """Take a snapshot after `step` steps, if it is due.

        `has_ended`: the run has, maybe early. `is_answered`: by an evaluation, whose snapshot of
        this step has all prompts.
        """
        if has_ended and step != self._taken:
            self._due = [step] if self._batches else []
        if not self._due or step < self._due[0]:
            return
        while len(self._due) > 1 and self._due[1] <= step:  # a bad loss was stepped over
            self._left_out.append(self._due.pop(0))
        trained_s = time.monotonic() - self._began_mono - self._budget.spent_s
        done = (step - self._first) / max(1, self._last - self._first)
        is_taken = is_answered or self._ranks.share(
            self._budget.takes(len(self._due), trained_s, done)
        )
        del self._due[0]
        if is_taken:
            self._taken = step
            if not is_answered:
                self._take(step)
        else:
            self._leave_out(step, trained_s / done)

    def _leave_out(self, step: int, all_s: float) -> None:
        if not self._has_reported and self._ranks.is_first:
            self._has_reported = True
            cost_s = self._budget.spent_s / self._budget.num_taken
            self._ranks.say(
                f"EVOLUTION: not after step {step}, nor after some later ones: answers take "
                f"{cost_s:.1f} s each time, and may take {self._share:.0%} of about {all_s:.0f} s "
                "in all (train.evolution_share)"
            )
        self._left_out.append(step)

    def _take(self, step: int) -> None:
        began_mono = time.monotonic()
        self._ranks.pulse.tick("eval")
        examples, why = [], ""
        try:
            with inference(self._answerer.model):
                examples = self._answer(step)
        except Exception as error:  # noqa: BLE001 - the training is worth more than its answers
            why = f"{type(error).__name__}: {error}"
        gathered: list[tuple[list[dict[str, Any]], str]] = self._ranks.gather((examples, why))
        self._budget.spent(time.monotonic() - began_mono)
        if not self._ranks.is_first:
            return
        reasons = [
            f"rank {rank}: {answers[1]}" for rank, answers in enumerate(gathered) if answers[1]
        ]
        if reasons:
            self._miss(step, reasons[0])
            return
        with self._ranks.events.span("evolution", step=step):
            self._write(step, [row for rows, _ in gathered for row in rows], began_mono)

    def _write(self, step: int, examples: Sequence[dict[str, Any]], began_mono: float) -> None:
        seconds = round(time.monotonic() - began_mono, 3)
        left_out, self._left_out = self._left_out, []
        try:
            summary = self._snapshots.write(
                step,
                examples,
                seconds=seconds,
                run_seconds=round(time.monotonic() - self._began_mono, 3),
                left_out_steps=left_out,
            )
        except OSError as error:
            self._miss(step, str(error))
            return
        self._ranks.events.emit(
            "metric",
            "evolution",
            step=step,
            loss=summary["avg_loss"],
            accuracy=summary["accuracy"],
            similarity=summary["similarity"],
            num_prompts=summary["total_examples"],
            time_s=seconds,
        )

    def _miss(self, step: int, why: str) -> None:
        """Tell that answers were due and are not there."""
        self._ranks.mark("evolution.missing", step=step, why=why)
        self._ranks.say(f"EVOLUTION: the answers after step {step} are missing: {why}")

    def _answer(self, step: int) -> list[dict[str, Any]]:
        """Answer this rank's share of the prompts."""
        examples = []
        for indices in self._batches[self._ranks.rank :: self._ranks.world_size]:
            self._ranks.pulse.tick("eval")
            losses = {}
            for index in indices:
                loss_sum, num_labels = self._answerer.loss_of([index])
                losses[index] = loss_sum / max(1, num_labels)
            examples += self._answerer.examples(indices, step, losses)
        return examples
