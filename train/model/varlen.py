"""Attention of packed rows by torch's flash kernel, which takes the borders of samples, not a mask.

transformers knows it as `varlen`. A mask of tokens times tokens costs what the kernel saves: no
block above the diagonal is skipped, keys and values are repeated for each query head, and newer
GPUs choose cuDNN's attention, which spends 0.4 s on each new length of a row
(transformers#48163). Soft caps, sinks and dropout are beyond the kernel: models with them keep
the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, PretrainedConfig

from ranks.torch_compat import flash_varlen

VARLEN: Final = "varlen"
# These are told where samples begin by the arguments of `borders`; others get a mask or positions.
TAKE_BORDERS = (VARLEN, "flash_attention_2")
# From ATen's mha_varlen_fwd: flash_attn/flash_api.cpp in torch.
MAX_HEAD_DIM, _HEAD_DIM_MULTIPLE = 256, 8
_HALF = (torch.bfloat16, torch.float16)
_LAYERS = {"full_attention", "sliding_attention"}
_BEYOND = ("softcap", "s_aux", "position_bias")
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


class NotForVarlenError(ValueError):
    """A model's attention does something that the flash kernel cannot."""


def why_not_varlen(described: PretrainedConfig) -> str | None:
    """Return why a model of that shape needs a mask; None if its config.json names no reason."""
    text = described.get_text_config()
    if dropout := next((name for name in _DROPOUTS if getattr(text, name, 0)), None):
        return f"{dropout} is {getattr(text, dropout)}"
    if other := set(getattr(text, "layer_types", None) or ()) - _LAYERS:
        return f"it has layers of {', '.join(sorted(other))}"
    if getattr(text, "attn_logit_softcapping", None):
        return "its attention scores have a soft cap"
    if (size := largest_head(described)) > MAX_HEAD_DIM:
        return f"its heads have {size} dimensions"
    return None


def largest_head(described: PretrainedConfig) -> int:
    """Return the size of the largest attention head of any layer, as far as config.json names it.

    Layers may have sizes of their own (Gemma 4: 256 and 512).
    """
    text = described.get_text_config()
    layers = list(getattr(text, "per_layer_config", None) or ()) or [text]
    sizes = [getattr(layer, "head_dim", None) for layer in layers]
    return max((size for size in sizes if isinstance(size, int)), default=0)


@contextmanager
def masked(model: Any) -> Iterator[None]:
    """Have a Hugging Face model use masks inside the block: to generate, to compare, on a CPU."""
    before = model.config._attn_implementation
    if before not in TAKE_BORDERS:
        yield
        return
    use_masks(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def use_masks(model: Any) -> None:
    """Have a Hugging Face model use what transformers chooses for it by itself: sdpa, or eager."""
    model.set_attn_implementation(model.get_correct_attn_implementation(None))


def register(*, beyond: bool = False) -> None:
    """Make `varlen` known to transformers, in this process.

    With `beyond` it leaves out soft caps, sinks and biases: its results are wrong then, but what it
    keeps for backward is what the flash-attn package would.
    """
    AttentionInterface.register(VARLEN, partial(_varlen, flash_varlen(), beyond))


def _varlen(
    kernel: Callable[..., torch.Tensor],
    beyond: bool,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention's output, (rows, tokens, heads, head size), as transformers expects it.

    `query`, `key` and `value` are (rows, heads, tokens, head size); keys may have fewer heads. A
    token sees those of its own sample up to itself, and no more than `sliding_window` of them.
    Raises NotForVarlenError for anything else.
    """
    cu_seq_lens, max_length = given.get("cu_seq_lens_q"), given.get("max_length_q")
    if cu_seq_lens is None or max_length is None:
        raise NotForVarlenError("its layers do not pass on where samples begin")
    if attention_mask is not None or query.shape[2] != key.shape[2]:
        raise NotForVarlenError("it brings a mask, or keys of earlier tokens")
    is_beyond = given.get("dropout") or any(given.get(name) is not None for name in _BEYOND)
    if is_beyond and not beyond:
        raise NotForVarlenError("it has dropout, a soft cap, sinks or biases of positions")
    is_causal = given.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotForVarlenError("it is not causal")
    _check_heads(query, key, value)
    num_rows, _, num_tokens, size = query.shape
    value_size = value.shape[-1]
    value = F.pad(value, (0, size - value_size))  # latent attention (DeepSeek) has smaller ones
    flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
    lengths = (cu_seq_lens, cu_seq_lens, max_length, max_length)
    # transformers counts the token itself as part of its window, the kernel does not.
    window = given.get("sliding_window")
    before = -1 if window is None else window - 1
    output = kernel(*flat, *lengths, scale=given.get("scaling"), window_size=(before, 0))
    return output[..., :value_size].unflatten(0, (num_rows, num_tokens)), None


def _check_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    size, dtype = query.shape[-1], query.dtype
    if key.shape[-1] != size or value.shape[-1] > size:
        raise NotForVarlenError("its queries, keys and values are of different sizes")
    if size > MAX_HEAD_DIM or size % _HEAD_DIM_MULTIPLE:
        raise NotForVarlenError(f"its heads have {size} dimensions")
    if not dtype == key.dtype == value.dtype or dtype not in _HALF:
        raise NotForVarlenError(f"it computes attention in {dtype}")
