"""A trial of varlen attention on the model itself, on random tokens, beside the same with masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from train.batches.batch import Batch, collate, collate_rows
from train.data.dataset import Sample, prompted
from train.model.build import inference, plain_model, vocabulary_of
from train.model.sample_borders import borders
from train.model.varlen import VARLEN, masked, use_masks

LENGTHS = (5, 3)  # tokens of two samples
_ROW_LENGTHS = (9, 1, 6)  # tokens of three samples in a row
# Of the root mean square of all logits. Two kernels round differently in each layer: 2 % in
# bfloat16 for 128 sums, each off by 2⁻⁹. Attention to other tokens, or other heads, makes 30 %.
_MOST_DIFFERENT = 0.1
# The same kernels compute a sample wherever it stands, unless its positions do not begin anew.
_MOST_MOVED = 0.005


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
    ids, positions, _, _, cu_seq_lens, max_length, _ = batch.arguments(model.device)
    given = {} if positions is None else {"position_ids": positions}
    given |= borders(plain_model(model), cu_seq_lens, max_length)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, **given).logits
    return logits


def difference(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the difference as a share of `wanted`, both by their root mean squares."""
    return float((logits - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def settle_attention(model: Any, config: RunConfig) -> str | None:
    """Have a model that cannot use varlen attention use masks; return why, None if it can.

    Raises UserError if varlen was asked for.
    """
    plain = plain_model(model)
    if plain.config._attn_implementation != VARLEN:
        return None
    why = _why_not(model, num_rows=min(2, config.train.micro_batch_size))
    if why is None:
        return None
    if config.model.attention == VARLEN:
        raise UserError(
            f"model.attention = {VARLEN!r}: {why}",
            do="--set model.attention=auto",
            code=ExitCode.PREFLIGHT,
        )
    use_masks(plain)
    return why


def _why_not(model: Any, num_rows: int) -> str | None:
    """Return why varlen fails for samples that share a row; with masks each has its own.

    (Some models' masks do not keep samples apart, where varlen does.)
    """
    samples = random_samples(model, 0, _ROW_LENGTHS)
    with masked(plain_model(model)):
        alone = logits_of(model, collate(samples))
    wanted = torch.cat([alone[i, :length] for i, length in enumerate(_ROW_LENGTHS)])
    try:
        logits = logits_of(model, collate_rows([samples] * num_rows))[-1]
        reversed_row = logits_of(model, collate_rows([samples[::-1]] * num_rows))[-1]
        try_backward(model, collate_rows([samples]))
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # noqa: BLE001 - any model's code runs here, and a kernel of a GPU's
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    from_masked = difference(logits, wanted)
    if not from_masked < _MOST_DIFFERENT:  # so that NaN is different
        return f"its logits differ by {from_masked:.1%} from those with a mask"
    moved = difference(torch.cat(reversed_row.split(_ROW_LENGTHS[::-1])[::-1]), logits)
    if not moved < _MOST_MOVED:
        return f"its logits change by {moved:.1%} with the place of a sample in its row"
    return None
