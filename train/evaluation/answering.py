"""Answers of the model to held-out prompts: greedy, compared with what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ranks.group import Ranks
from rundir.prepared import PreparedData
from train.batches.batch import loss_of
from train.data.dataset import SampleFile
from train.model.build import end_token_ids, plain_model
from train.model.loss import SummedLoss
from train.model.varlen import masked

MAX_NEW_TOKENS = 256


def spread_evenly(num_samples: int, limit: int) -> Sequence[int]:
    """Return the indices of `limit` samples, the same each time; of all if `limit` is 0 or more."""
    if not 0 < limit < num_samples:
        return range(num_samples)
    return [number * num_samples // limit for number in range(limit)]


class Answerer:
    """What computes the losses of held-out samples, and answers their prompts, on one rank."""

    def __init__(
        self, data: PreparedData, summed_loss: SummedLoss, tokenizer: Any, ranks: Ranks
    ) -> None:
        self.data, self.samples, self.ranks = data, SampleFile(data), ranks
        self.model: Any = summed_loss.model  # the whole of it is on every rank
        self._summed_loss, self._tokenizer = summed_loss, tokenizer
        self._end_ids = end_token_ids(self.model, data.end_token_id)

    def loss_of(self, indices: Sequence[int]) -> tuple[float, int]:
        """Return the summed loss of samples that are computed at once, and their labels."""
        samples = [self.samples[index] for index in indices]
        return loss_of(self._summed_loss, samples, self.ranks.device)

    def has_prompt(self, index: int) -> bool:
        """Return whether a sample has one: plain texts are all answer."""
        return bool(self._num_prompt_tokens(index))

    def examples(
        self, indices: Sequence[int], step: int, losses: Mapping[int, float]
    ) -> list[dict[str, Any]]:
        """Answer samples as one batch; return the fields of a snapshot for each.

        `losses` are teacher-forced: the mean over the label tokens of a sample.
        """
        answers = self._answers(indices)
        return [
            self._example(index, step, answer, losses[index])
            for index, answer in zip(indices, answers, strict=True)
        ]

    def _example(self, index: int, step: int, answer: str, loss: float) -> dict[str, Any]:
        prompt, expected = self.samples.texts(index)
        return {
            "example_id": index,
            "step": step,
            "input": prompt,
            "expected_output": expected,
            "model_output": answer,
            "loss": loss,
            "exact_match": answer.strip() == expected.strip(),
            "output_length": len(answer),
            "similarity": round(difflib.SequenceMatcher(None, answer, expected).ratio(), 4),
        }

    def _answers(self, indices: Sequence[int]) -> list[str]:
        prompts = [self.samples[i][0][: self._num_prompt_tokens(i)] for i in indices]
        longest = max(self.samples.length(i) - self._num_prompt_tokens(i) for i in indices)
        ids, mask = _pad_left(prompts, self._end_ids[0])
        with masked(plain_model(self.model)):
            generated = self.model.generate(
                input_ids=ids.to(self.ranks.device),
                attention_mask=mask.to(self.ranks.device),
                max_new_tokens=min(MAX_NEW_TOKENS, longest + 4),
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


def _pad_left(prompts: list[Any], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left-padded ids and mask of prompts, (prompts, length) each."""
    length = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), length), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, length - len(prompt) :] = 1
    return ids, mask
