"""Trials of what the trainer assumes about a model, on a few tokens before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from train.batches.batch import Batch, collate
from train.data.dataset import Sample, prompted
from train.model.adapters import coverage_line
from train.model.attention import attention_line
from train.model.build import has_adapters, inference, plain_model
from train.model.head import Head, head_of
from train.model.loss import SummedLoss
from train.model.multimodal import known_class, towers_line
from train.model.varlen import masked, use_masks
from train.step.try_attention import LENGTHS, logits_of, random_samples, settle_attention
from train.step.try_packing import NOT_TRIED, Packed, follow_packing, leak_of, settle_packing

_LONG = 256  # tokens of the trial step: a state is computed in chunks of 64 or 128
_TWO = (0, 1)  # seeds, whose samples take each other's place
_LEAST_EFFECT = 1e-4  # of a later token on earlier logits
_NAME_PARTS, _MAX_NAMES = 4, 4  # parts of a listed name; most names in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The findings about a model."""

    head: Head = "matrix"  # see train/model/head.py
    unused: tuple[str, ...] = ()  # names of trainable parameters that got no gradient
    why_masked: str | None = None  # the reason that it cannot use varlen attention
    changed_buffers: tuple[str, ...] = ()  # names of buffers that a training step changes
    packed: Packed = NOT_TRIED


def try_out(model: Any, config: RunConfig, ranks: Ranks) -> Tried:
    """Try out the model on rank 0, and return the findings on all ranks, which follow them.

    Raises UserError on rank 0 if the model is not causal, if samples cannot be packed for it, or if
    its own code fails.
    """
    tried = Tried()
    if ranks.is_first:
        tried = tried_of(model, config)
        for text in _lines(model, config, tried):
            ranks.say(text)
    result: Tried = ranks.share(tried)
    if result.why_masked:
        use_masks(plain_model(model))
    if not ranks.is_first:
        follow_packing(model, config, result.packed)
    return result


def tried_of(model: Any, config: RunConfig) -> Tried:
    """Run all trials; return the findings. Raises UserError, with the exit code of preflight."""
    try:
        check_exportable(model)
        why_masked = settle_attention(model, config)
        check_causal(model)
        packed = settle_packing(model, config)
        length = min(_LONG, config.data.max_seq_length, _num_positions(model))
        return replace(try_step(model, length), why_masked=why_masked, packed=packed)
    except (UserError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # any model's code runs here
        what = (str(error).strip() or "no reason given").splitlines()[0]
        if "CUDA" in what or "allocate memory" in what:  # the machine's fault, not the model's
            raise
        raise UserError(
            f"this model fails on a few tokens: {type(error).__name__}: {what}",
            do="another model, model.dtype or train.method: it is the code of transformers or peft "
            "that fails, not the data",
            code=ExitCode.PREFLIGHT,
        ) from error


def _num_positions(model: Any) -> int:
    """Return the longest sample that the model claims to take; data are checked against it too."""
    described = plain_model(model).config.get_text_config()
    number = getattr(described, "max_position_embeddings", None)
    return number if isinstance(number, int) and number > 0 else _LONG


def _lines(model: Any, config: RunConfig, tried: Tried) -> Iterator[str]:
    """Return the lines to log about the findings."""
    plain = plain_model(model)
    lines = [towers_line(plain), attention_line(plain, config)]
    if tried.why_masked:
        lines.append(f"ATTENTION: with masks, as varlen fails for this model: {tried.why_masked}")
    if tried.packed.line:
        lines.append(f"PACKING: {tried.packed.line}")
    if has_adapters(model):
        lines.append(coverage_line(model))
    if tried.head == "whole":
        lines.append("LOSS: this model's head is run at once: a whole batch's logits are held")
    if tried.changed_buffers:
        lines.append(
            f"BUFFERS: {len(tried.changed_buffers)} are changed by a training step, and follow "
            f"rank 0's: {', '.join(tried.changed_buffers[:_MAX_NAMES])}"
        )
    if tried.unused:
        ends = {".".join(name.split(".")[-_NAME_PARTS:]) for name in tried.unused}
        shown = ", ".join(sorted(ends)[:_MAX_NAMES])
        lines.append(
            f"GRADIENTS: {len(tried.unused)} trained tensors got none in a trial step, and stay as "
            f"they are until one does: {shown}"
        )
    return filter(None, lines)


def try_step(model: Any, length: int = max(LENGTHS)) -> Tried:
    """Run a forward and backward pass of `length` tokens, and of fewer; they may be on meta.

    No gradients are left, and buffers are as they were. Raises whatever the model's own code
    raises.
    """
    head, device = head_kind(model), model.device
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with random, buffers_watched(model) as changed:
        loss = SummedLoss(model, head=head)(*trial_batch(model, length).arguments(device))
        loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    unused = tuple(name for name, parameter in trained if parameter.grad is None)
    model.zero_grad()
    return Tried(head=head, unused=unused, changed_buffers=tuple(changed))


@contextmanager
def buffers_watched(model: Any) -> Iterator[list[str]]:
    """Fill the list, when the block ends, with the names of buffers that have changed inside.

    Those that were changed in place have their values back afterwards; the block may be a trial.
    Values are compared, as some kernels change running averages without autograd's knowledge.
    Buffers on the meta device have none, and are taken not to change.
    """
    changed: list[str] = []
    before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        name: (buffer, buffer.detach().clone())
        for name, buffer in model.named_buffers()
        if not buffer.is_meta
    }
    yield changed
    after = dict(model.named_buffers())
    for name, (buffer, values) in before.items():
        if after.get(name) is not buffer:
            changed.append(name)
        elif not _is_equal(buffer, values):
            changed.append(name)
            buffer.detach().copy_(values)


def _is_equal(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the values are equal, with NaN equal to itself."""
    same = first == other
    if first.is_floating_point():
        same |= first.isnan() & other.isnan()
    return bool(same.all())


def head_kind(model: Any) -> Head:
    """Return the kind of head that a model has, tried out with a few tokens."""
    ids, *_ = trial_batch(model).arguments(model.device)
    assert ids is not None
    with inference(model), masked(plain_model(model)):
        return head_of(model, ids)


def trial_batch(model: Any, length: int = max(LENGTHS)) -> Batch:
    """Return two samples of random tokens, the first of that length."""
    return collate(random_samples(model, 0, (length, min(LENGTHS))))


def check_exportable(model: Any) -> None:
    """Raise UserError if AutoModelForCausalLM could not load the trained model.

    In some multimodal models the text part is of a class that is not registered there.
    """
    described = plain_model(model).config
    kind = described.model_type
    if known_class(described) is None and type(described).__module__.startswith("transformers."):
        raise UserError(
            f"what is trained of this model is its {kind}, which transformers cannot load again by "
            "itself",
            do="take a model for text",
            code=ExitCode.PREFLIGHT,
        )


def check_causal(model: Any) -> None:
    """Raise UserError if a token changes what is predicted before it.

    Such a model is not causal, and learns to copy what it should predict.
    """
    first, _ = random_samples(model, 0)

    def ending(seed: int) -> list[Sample]:
        return [prompted(np.concatenate([first[0], random_samples(model, seed)[1][0]]), 1)]

    # A state that is computed for many tokens at once changes by its last digit.
    least = max(_LEAST_EFFECT, 2 * torch.finfo(next(model.parameters()).dtype).eps)
    logits = [logits_of(model, collate(ending(seed)))[0, : len(first[0])] for seed in _TWO]
    leak = leak_of(model, logits, least)
    if leak:
        raise UserError(
            "this model is not causal: later tokens change the logits of those before them by "
            f"{leak:.2%}",
            do="take a causal language model",
            code=ExitCode.PREFLIGHT,
        )
