"""A model's logits of a few random tokens, for trials of what the trainer assumes about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from train.batches.batch import Batch
from train.data.dataset import Sample, prompted
from train.model.build import inference, plain_model, vocabulary_of
from train.model.varlen import borders

LENGTHS = (5, 3)  # tokens of two samples


def random_samples(model: Any, seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[Sample]:
    """Return samples of that many random tokens, the first of each without a label."""
    vocab_size = vocabulary_of(model)
    draw = np.random.default_rng(seed).integers
    return [prompted(draw(0, vocab_size, length).astype(np.int32), 1) for length in lengths]


def logits_of(model: Any, batch: Batch) -> torch.Tensor:
    """Return logits, (rows, tokens, vocabulary), in float32."""
    with inference(model):
        return _forward(model, batch).float()


def try_backward(model: Any, batch: Batch) -> None:
    """Run a backward through all layers that train, and keep nothing of it; raises what they do."""
    first = next((weight for weight in model.parameters() if weight.requires_grad), None)
    if first is not None:
        with inference(model), torch.enable_grad():
            torch.autograd.grad(_forward(model, batch).sum(), first, allow_unused=True)


def _forward(model: Any, batch: Batch) -> torch.Tensor:
    ids, positions, _, _, cu_seq_lens, max_length = batch.arguments(model.device)
    given = {} if positions is None else {"position_ids": positions}
    given |= borders(plain_model(model), cu_seq_lens, max_length)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, **given).logits
    return logits


def difference(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the difference as a share of `wanted`, both by their root mean squares."""
    return float((logits - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
