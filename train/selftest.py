"""What the trainer takes for granted of a model, tried out on a few tokens before it trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from train.batch import Batch, collate, collate_rows
from train.data import Sample, prompted
from train.loss import is_plain
from train.model import inference
from train.ranks import Ranks

_LENGTHS = (5, 3)  # of two samples in one row


def try_out(model: Any, config: RunConfig, ranks: Ranks, events: EventWriter) -> bool:
    """Whether the loss can be computed in chunks, which rank 0 finds out for all.

    Raises UserError there for a model that samples cannot be packed for.
    """
    in_chunks = True
    if ranks.is_first:
        if config.data.packing:
            check_packing(model, num_rows=min(2, config.train.micro_batch_size))
        in_chunks = takes_loss_in_chunks(model)
        if not in_chunks:
            text = "LOSS: this model does more to its logits: they are held for a whole batch"
            events.emit("log", "line", text=f"[Rank 0] {text}")
    return bool(ranks.share(in_chunks))


def takes_loss_in_chunks(model: Any) -> bool:
    """Whether the loss in chunks is this model's own (see train/loss.py)."""
    with inference(model):
        return is_plain(model, trial_batch(model).arguments(_device(model)))


def trial_batch(model: Any) -> Batch:
    """Two short samples of random tokens."""
    return collate(_samples(model, 0))


def check_packing(model: Any, *, num_rows: int = 1) -> None:
    """Raise UserError unless the samples of one row, of so many at once, do not see each other.

    transformers keeps them apart by their positions, silently or not at all: recurrent models and
    a few others do not. A sample's logits then change with the sample before it.
    """
    try:
        logits = [_second_logits(model, seed, num_rows) for seed in (0, 1)]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model's code may run here, and some take no positions
        raise _not_packed(f"this model cannot be given the positions of a row: {error}") from error
    leak = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    if leak > 4 * torch.finfo(next(model.parameters()).dtype).eps:
        raise _not_packed(
            f"samples in one row see each other in this model: another one before it changes the "
            f"logits of a sample by {leak:.1%}"
        )


def _second_logits(model: Any, seed_of_first: int, num_rows: int) -> torch.Tensor:
    """The logits of the second of two samples in a row, (tokens, vocabulary)."""
    before, after = _samples(model, seed_of_first)[0], _samples(model, 0)[1]
    ids, positions, *_ = collate_rows([[before, after]] * num_rows).arguments(_device(model))
    with inference(model):
        found = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    logits: torch.Tensor = found[0, len(before[0]) : len(before[0]) + len(after[0])]
    return logits.float()


def _not_packed(what: str) -> UserError:
    return UserError(what, do="--set data.packing=false", code=ExitCode.PREFLIGHT)


def _samples(model: Any, seed: int) -> list[Sample]:
    vocab_size = model.get_input_embeddings().num_embeddings
    draw = np.random.default_rng(seed).integers
    return [prompted(draw(0, vocab_size, length).astype(np.int32), 1) for length in _LENGTHS]


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device
