"""Layers that run on from one sample of a packed row to the next are given each sample by itself.

Attention learns from positions where a sample begins. Layers with a state or a convolution do not:
gated delta nets, Mamba, lightning attention, short convolutions. Some of their kernels take
borders, others and transformers' own code in torch do not (it raises for `cu_seqlens` and
`seq_idx`). So around each such layer the samples of all rows become rows of a batch, padded on the
right, and its output is put back in place; everything else computes packed rows. This holds for any
kernel, as no two samples are ever in one row of it, and these layers see nothing to their right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from train.data.like_lengths import like_lengths
from train.model.head import layers_of
from train.model.on_device import on_device
from train.model.sample_borders import SAMPLE_STARTS

# Classes of transformers whose forward takes (rows, tokens, width) first, and mixes tokens by a
# state or a convolution alone.
_MIXERS = re.compile(
    r"\w*(Mixer|MambaLayer|GatedDeltaNet|DeltaAttention|TextLinearAttention|LightningAttention|"
    r"ShortConv|ShortConvolution|RecurrentBlock|PLELayer|CCAProjection)|"
    r"RwkvSelfAttention|RwkvFeedForward"
)
_TOLD = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
_MASKED = ("sdpa", "eager")
_CALL_TOKENS = 128  # a further call of a layer costs about as much as so many more tokens


@dataclass(frozen=True, slots=True)
class _Group:
    """Samples of like length.

    `taken`, (samples, longest), are their tokens' places in the flattened rows; beyond a sample's
    end, that of its last token. `kept` are the places of all but those in the flattened group.
    """

    taken: torch.Tensor
    kept: torch.Tensor


class Apart:
    """Keeps samples apart in a Hugging Face model's layers that mix tokens without attention."""

    def __init__(self, plain: Any, *, with_mask: bool = False, is_compiled: bool = False) -> None:
        """Wrap the layers that `kinds` counts, if there are any; `release` undoes it.

        `with_mask` also gives attention its mask, for models that make it without positions.
        `is_compiled` says that the layers around will be.
        """
        self._plain, self._with_mask = plain, with_mask
        self._mixers = _outermost(plain)
        self._groups: list[_Group] = []
        self._back: torch.Tensor | None = None  # None: each row is one sample
        self._shape = (0, 0)
        self._layers = layers_of(plain)
        # In a pass of the whole model, which may not tell its layers:
        self._has_positions = False
        self._starts: Sequence[int] | None = None
        self._hooks = [
            plain.register_forward_pre_hook(self._enter_model, with_kwargs=True),
            plain.register_forward_hook(self._leave_model, always_call=True),
        ]
        if self._layers is not None:
            enter = self._enter_layers
            self._hooks.append(self._layers.register_forward_pre_hook(enter, with_kwargs=True))
        plain.takes_sample_starts = True
        for mixer in self._mixers:
            mixer.forward = partial(self._forward, mixer.forward)
            if is_compiled:  # a new division of a row would be compiled anew
                mixer.forward = torch.compiler.disable(mixer.forward)

    @property
    def kinds(self) -> dict[str, int]:
        """The classes of the wrapped layers, and how many there are of each."""
        return dict(Counter(type(mixer).__name__ for mixer in self._mixers))

    def release(self) -> None:
        """Have the model compute as before."""
        for hook in self._hooks:
            hook.remove()
        for mixer in self._mixers:
            del mixer.forward
        del self._plain.takes_sample_starts

    def _enter_model(self, _: Any, args: Any, given: dict[str, Any]) -> Any:
        if layers_of(self._plain) is not self._layers:  # only its head is run (model/head.py)
            return None
        self._has_positions = given.get("position_ids") is not None
        self._starts = given.get(SAMPLE_STARTS)
        return self._begin(args, given)

    def _leave_model(self, *_: Any) -> None:
        self._has_positions, self._starts = False, None

    def _enter_layers(self, _: Any, args: Any, given: dict[str, Any]) -> Any:
        if self._has_positions and given.get("position_ids") is None:
            return None
        return self._begin(args, given)

    def _begin(self, args: Any, given: dict[str, Any]) -> Any:
        """Note where samples begin. It is kept until the next pass: backward may compute again."""
        self._back = None
        given = dict(given)
        starts, positions = given.pop(SAMPLE_STARTS, self._starts), given.get("position_ids")
        # Whoever generates has a cache, and one sample a row.
        if positions is not None and not given.get("use_cache", True):
            self._divide(positions, starts)
            if self._back is not None and self._with_mask:
                given["attention_mask"] = _mask(self._plain, positions)
        return args, given

    def _divide(self, positions: torch.Tensor, starts: Sequence[int] | None) -> None:
        if positions.dim() != len(self._shape) or (positions.is_meta and starts is None):
            return
        if starts is None:  # read from the device, which waits for all that it computes
            is_first = positions == 0
            is_first[:, 0] = True
            starts = is_first.flatten().nonzero().flatten().tolist()
        if len(starts) == len(positions):
            return
        self._shape = (positions.shape[0], positions.shape[1])
        self._groups, self._back = _divided(starts, positions.numel(), positions.device)

    def _forward(self, inner: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Return what `inner` does, with each sample in a row of its own."""
        if self._back is None:
            return inner(*args, **given)
        given = {name: value for name, value in given.items() if name not in _TOLD}
        mask = given.get("attention_mask")
        if mask is not None and mask.shape != self._shape:  # it is for attention
            given["attention_mask"] = None
        outputs = []
        for group in self._groups:
            take = partial(self._taken, group.taken)
            outputs.append(
                inner(
                    *map(take, args), **{name: take(argument) for name, argument in given.items()}
                )
            )
        return self._together(outputs)

    def _taken(self, places: torch.Tensor, value: Any) -> Any:
        """Return the samples of a group from a tensor of rows and tokens, or a tuple of them."""
        if isinstance(value, tuple):
            return tuple(self._taken(places, item) for item in value)
        if not isinstance(value, torch.Tensor) or value.shape[:2] != self._shape:
            return value
        taken = value.flatten(0, 1).index_select(0, places.flatten())
        return taken.unflatten(0, (places.shape[0], places.shape[1]))

    def _together(self, outputs: Sequence[Any]) -> Any:
        """Return the groups' outputs as rows of samples; states, which are no rows, become None."""
        first = outputs[0]
        if isinstance(first, tuple):
            return tuple(self._together(parts) for parts in zip(*outputs, strict=True))
        shapes = [group.taken.shape for group in self._groups]
        is_rows = isinstance(first, torch.Tensor) and all(
            part.shape[:2] == shape for part, shape in zip(outputs, shapes, strict=True)
        )
        if not is_rows:
            return None
        assert self._back is not None
        kept = [
            part.flatten(0, 1).index_select(0, group.kept)
            for part, group in zip(outputs, self._groups, strict=True)
        ]
        return torch.cat(kept).index_select(0, self._back).unflatten(0, self._shape)


def may_have_mask(plain: Any) -> bool:
    """Return whether one mask is right for all attention of a model, as it has no windows."""
    text = plain.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    return (
        plain.config._attn_implementation in _MASKED
        and not getattr(text, "sliding_window", None)
        and not any("sliding" in kind or "chunked" in kind for kind in kinds)
    )


def _mask(plain: Any, positions: torch.Tensor) -> torch.Tensor:
    """Return which tokens see which, (rows, 1, tokens, tokens): those of their sample before them.

    It is as transformers makes it: true or false for sdpa, what is added to scores for eager.
    """
    sample = (positions == 0).cumsum(1)
    sees = (sample[:, :, None] == sample[:, None, :]).tril()[:, None]
    if plain.config._attn_implementation == "sdpa":
        return sees
    least = torch.finfo(plain.dtype).min
    return torch.zeros_like(sees, dtype=plain.dtype).masked_fill(~sees, least)


def _outermost(plain: nn.Module) -> list[Any]:
    """Return the layers that mix tokens, but none inside another."""
    mixers: list[Any] = []
    for child in plain.children():
        is_mixer = _MIXERS.fullmatch(type(child).__name__)
        mixers += [child] if is_mixer else _outermost(child)
    return list({id(mixer): mixer for mixer in mixers}.values())  # some models share layers


def _divided(
    starts: Sequence[int], num_tokens: int, device: torch.device
) -> tuple[list[_Group], torch.Tensor]:
    """Return samples of like length in groups, and where each token is in all that they keep."""
    ends = [*starts[1:], num_tokens]
    order = sorted(range(len(starts)), key=lambda index: (starts[index] - ends[index], index))
    lengths = [ends[index] - starts[index] for index in order]
    groups, kept_places = [], []
    for members in like_lengths(lengths, cost=_CALL_TOKENS):
        places = torch.arange(lengths[members[0]])
        begins = torch.tensor([starts[order[member]] for member in members])[:, None]
        sizes = torch.tensor([lengths[member] for member in members])[:, None]
        taken = begins + torch.minimum(places, sizes - 1)
        kept = (places < sizes).flatten().nonzero().flatten()
        kept_places.append(taken.flatten()[kept])
        groups += [taken, kept]
    there = on_device([*groups, torch.cat(kept_places).argsort()], device)
    *of_groups, back = (tensor for tensor in there if tensor is not None)
    pairs = zip(of_groups[::2], of_groups[1::2], strict=True)
    return [_Group(taken, kept) for taken, kept in pairs], back
