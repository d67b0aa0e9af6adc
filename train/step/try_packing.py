"""Trials of whether samples can share a row in a model, and the choice of what is done if not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from rundir.config import Packing, RunConfig
from rundir.errors import ExitCode, UserError
from train.batches.batch import collate, collate_rows
from train.data.architecture import why_not_apart
from train.data.dataset import Sample
from train.model.apart import Apart, may_have_mask
from train.model.build import plain_model
from train.model.export import difference as largest_difference
from train.step.try_attention import LENGTHS, difference, logits_of, random_samples

NOT_PACKED = "--set data.packing=auto"
# Isolated samples change each other by exactly 0.0 in bfloat16, by at most 2.4e-7 in float32.
_LEAST_LEAK = 1e-6
_TWO = (0, 1)  # seeds, whose samples take each other's place
_NOISE_FACTOR = 4  # times the effect on each other of samples in rows of their own
_SEVERAL = range(6)  # seeds of neighbours for that: by chance, one can have hardly any effect
_APART = (19, 2, 7, 33)  # tokens of four samples: of them several are computed together, and not
# Of the root mean square of all logits, as in train/step/try_attention.py: a sample that is put
# back in another's place makes more than 100 %.
_MOST_DIFFERENT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """How samples share rows."""

    packing: Packing = True  # never auto
    help_: Literal["", "layers", "layers and mask"] = ""  # what keeps them apart beside positions
    line: str = ""  # for people; empty if there is nothing to say


NOT_TRIED = Packed()


def settle_packing(model: Any, config: RunConfig) -> Packed:
    """Return how samples can share rows, and have the model keep them apart if it needs help.

    Raises UserError if packing was asked for, and they cannot.
    """
    asked = config.data.packing
    if asked is False or asked == "by_length":
        return Packed(packing=asked)
    num_rows = min(2, config.train.micro_batch_size)
    try:
        check_packing(model, num_rows=num_rows)
        return NOT_TRIED
    except UserError as error:
        refused = error
    for with_mask in (False, True):
        if reason := _kept_apart(model, config, with_mask=with_mask, num_rows=num_rows):
            return reason
    if asked is True:
        raise refused
    line = (
        "by length: samples of like length share batches, each in a row of its own, as "
        f"{refused.args[0]}"
    )
    return Packed(packing="by_length", line=line)


def follow_packing(model: Any, config: RunConfig, packed: Packed) -> None:
    """Have a model keep samples apart as rank 0's does."""
    if packed.help_:
        with_mask = packed.help_ == "layers and mask"
        Apart(plain_model(model), with_mask=with_mask, is_compiled=config.model.compile)


def _kept_apart(model: Any, config: RunConfig, *, with_mask: bool, num_rows: int) -> Packed | None:
    """Have the layers that run on compute each sample by itself; None if that fails."""
    plain = plain_model(model)
    if with_mask and not may_have_mask(plain):
        return None
    apart = Apart(plain, with_mask=with_mask, is_compiled=config.model.compile)
    try:
        if apart.kinds:
            check_packing(model, num_rows=num_rows)
            _check_alone(model, num_rows)
            names = ", ".join(f"{num} × {kind}" for kind, num in apart.kinds.items())  # noqa: RUF001
            line = f"samples share rows, and {names} are given each by itself"
            return Packed(help_="layers and mask" if with_mask else "layers", line=line)
    except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception:  # noqa: BLE001, S110 - any model's code runs here; there is another way
        pass
    apart.release()
    return None


def _check_alone(model: Any, num_rows: int) -> None:
    """Raise UserError if samples of a row change each other, or are not as each alone."""
    mine, others = (random_samples(model, seed, _APART) for seed in _TWO)
    row, beside = mine, [others[0], mine[1], others[2], mine[3]]
    logits, other = (
        logits_of(model, collate_rows([samples] * num_rows))[-1] for samples in (row, beside)
    )
    begin = 0
    for at, length in enumerate(_APART):
        part = slice(begin, begin + length)
        begin += length
        alone = logits_of(model, collate([mine[at]]))[0]
        from_alone = difference(logits[part], alone)
        if not from_alone < _MOST_DIFFERENT:
            raise _not_packed(f"a sample's logits differ by {from_alone:.1%} from it alone")
        if beside[at] is mine[at] and leak_of(model, [logits[part], other[part]]):
            raise _not_packed("samples of several lengths in one row see each other")


def check_packing(model: Any, *, num_rows: int = 1) -> None:
    """Raise UserError if the samples of one row, with `num_rows` at once, see each other.

    transformers keeps them apart by their positions, except, silently, in recurrent models and a
    few others. A sample's logits then change with the sample before it.
    """
    before, after = LENGTHS

    def row(seed: int) -> list[Sample]:
        return [random_samples(model, seed)[0], random_samples(model, 0)[1]]

    try:
        logits = [logits_of(model, collate_rows([row(seed)] * num_rows)) for seed in _TWO]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model's code may run here, and some take no positions
        raise _not_packed(f"this model cannot be given the positions of a row: {error}") from error
    if leak := leak_of(model, [logit[0, before : before + after] for logit in logits]):
        kind = plain_model(model).config.model_type
        raise _not_packed(
            f"samples in one row see each other in this model ({why_not_apart(kind)}another one "
            f"before it changes the logits of a sample by {leak:.2%})"
        )


def leak_of(model: Any, logits: Sequence[torch.Tensor], least: float = _LEAST_LEAK) -> float:
    """Return how much logits that should be equal differ; 0 if it is only numerical noise.

    With experts, the rest of the batch changes the shapes of their products, and so the last digit.
    The noise is the most that does to a sample in a row of its own, with several others.
    """
    leak = largest_difference(*logits)
    if not leak > least:
        return 0.0
    mixed = [
        collate([random_samples(model, seed)[0], random_samples(model, 0)[1]]) for seed in _SEVERAL
    ]
    first, *others = (logits_of(model, batch)[1, : LENGTHS[1]] for batch in mixed)
    noise = max(largest_difference(first, other) for other in others)
    return leak if leak > _NOISE_FACTOR * noise else 0.0


def _not_packed(what: str) -> UserError:
    return UserError(what, do=NOT_PACKED, code=ExitCode.PREFLIGHT)
