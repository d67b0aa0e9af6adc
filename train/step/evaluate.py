"""Evaluation on held-out data: loss, and generated answers compared; every sample exactly once.

Snapshots of the answers are kept, one file for each step at which they were taken.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rundir.atomic import write_text
from rundir.config import RunConfig
from rundir.data_paths import name_of
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import PreparedData
from train.data.dataset import SampleFile
from train.model.build import end_token_ids, inference, plain_model
from train.model.loss import SummedLoss
from train.model.varlen import masked
from train.rank.group import Ranks
from train.step.batch import collate

_MAX_NEW_TOKENS = 256

MAX_EXAMPLES = 500  # per file: enough to look through


def write_snapshot(path: Path, step: int, timestamp: str, examples: list[dict[str, Any]]) -> None:
    """Write the snapshot of `step`, with a summary of all `examples`. Raises OSError."""
    correct = sum(example["exact_match"] for example in examples)
    snapshot = {
        "v": 1,
        "snapshot_id": path.stem,
        "training_step": step,
        "timestamp": timestamp,
        "examples": examples[:MAX_EXAMPLES],
        "summary": {
            "total_examples": len(examples),
            "correct": correct,
            "incorrect": len(examples) - correct,
            "accuracy": correct / max(1, len(examples)),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(snapshot, ensure_ascii=False, indent=1) + "\n", durable=False)


class Evaluator:
    """Evaluates the model of `loss` on held-out samples, divided among the ranks."""

    def __init__(
        self,
        *,
        loss: SummedLoss,
        prepared: PreparedData,
        tokenizer: Any,
        ranks: Ranks,
        events: EventWriter,
        run: RunDir,
        config: RunConfig,
    ) -> None:
        self.samples = samples = SampleFile(prepared)
        model: Any = loss.model
        self._summed_loss, self._model, self._tokenizer = loss, model, tokenizer
        self._ranks, self._events, self._run = ranks, events, run
        self._dataset = name_of(config.data.eval_path or config.data.path)
        self._generate = config.train.eval_generate
        self._batch_size = config.train.micro_batch_size
        self._end_ids = end_token_ids(model, prepared.end_token_id)
        self._own = range(ranks.rank, len(samples), ranks.world_size)

    def evaluate(self, step: int) -> float:
        """Write the `eval` metric, and the snapshot of answers if they are generated.

        Returns the mean loss per label token, over the samples of all ranks.
        """
        self._ranks.pulse.tick("eval")
        with self._events.span("eval", step=step), inference(self._model):
            loss_sum, num_labels = self._ranks.sum(self._loss())
            examples = self._examples(step) if self._generate else []
        exact_match = None
        if self._generate:
            correct, count = self._ranks.sum(
                [sum(example["exact_match"] for example in examples), len(examples)]
            )
            exact_match = correct / count if count else None
            gathered = [row for rows in self._ranks.gather(examples) for row in rows]
            if self._ranks.is_first:
                with self._events.span("evolution", step=step):
                    self._write(step, sorted(gathered, key=lambda row: row["example_id"]))
        loss = loss_sum / max(1.0, num_labels)
        if self._ranks.is_first:
            self._events.emit("metric", "eval", step=step, loss=loss, exact_match=exact_match)
        return loss

    def _batches(self) -> Iterator[list[int]]:
        for start in range(0, len(self._own), self._batch_size):
            self._ranks.pulse.tick("eval")
            yield list(self._own[start : start + self._batch_size])

    def _loss(self) -> tuple[float, float]:
        """Return (loss sum, label tokens) of this rank's share."""
        total, num_labels = 0.0, 0
        for indices in self._batches():
            batch = collate([self.samples[i] for i in indices])
            total += float(self._summed_loss(*batch.arguments(self._ranks.device)))
            num_labels += batch.num_label_tokens
        return total, float(num_labels)

    def _examples(self, step: int) -> list[dict[str, Any]]:
        """Return this rank's share, answered greedily, in the fields of a snapshot."""
        examples = []
        for batch in self._batches():
            indices = [index for index in batch if self._num_prompt_tokens(index)]
            if not indices:  # plain texts have no prompt
                continue
            answers = self._answers(indices)
            examples += [self._example(i, step, a) for i, a in zip(indices, answers, strict=True)]
        return examples

    def _example(self, index: int, step: int, answer: str) -> dict[str, Any]:
        prompt, expected = self.samples.texts(index)
        return {
            "example_id": index,
            "step": step,
            "input": prompt,
            "expected_output": expected,
            "model_output": answer,
            "exact_match": answer.strip() == expected.strip(),
            "output_length": len(answer),
            "similarity": round(difflib.SequenceMatcher(None, answer, expected).ratio(), 4),
        }

    def _answers(self, indices: list[int]) -> list[str]:
        prompts = [self.samples[i][0][: self._num_prompt_tokens(i)] for i in indices]
        longest_answer = max(self.samples.length(i) - self._num_prompt_tokens(i) for i in indices)
        ids, mask = _pad_left(prompts, self._end_ids[0])
        with masked(plain_model(self._model)):
            generated = self._model.generate(
                input_ids=ids.to(self._ranks.device),
                attention_mask=mask.to(self._ranks.device),
                max_new_tokens=min(_MAX_NEW_TOKENS, longest_answer + 4),
                do_sample=False,
                use_cache=True,
                eos_token_id=self._end_ids,
                pad_token_id=self._end_ids[0],
            )
        answers = [self._up_to_end(row) for row in generated[:, ids.shape[1] :].tolist()]
        return [str(self._tokenizer.decode(row, skip_special_tokens=True)) for row in answers]

    def _num_prompt_tokens(self, index: int) -> int:
        """Return the number of tokens before a sample's last answer; 0 if it is all answer."""
        return int(self.samples[index][1][-1, 0])

    def _up_to_end(self, ids: list[int]) -> list[int]:
        """Return the answer itself: the ids before the first end token."""
        ends = [position for position, token in enumerate(ids) if token in self._end_ids]
        return ids[: ends[0]] if ends else ids

    def _write(self, step: int, examples: list[dict[str, Any]]) -> None:
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        write_snapshot(self._run.evolution(self._dataset, step), step, timestamp, examples)


def _pad_left(prompts: list[Any], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left-padded ids and mask of prompts, (prompts, length) each."""
    length = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), length), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, length - len(prompt) :] = 1
    return ids, mask
