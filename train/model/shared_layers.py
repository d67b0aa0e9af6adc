"""Adapters of layers that share one weight: one pair of matrices for all of them.

Zamba and Zamba2 run the same attention at several depths, each time as layers of their own whose
weights are tied. Adapters that differ between them would add up to something else in the one weight
that they are merged into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from rundir.errors import ExitCode, UserError

_MATRICES = ("lora_A", "lora_B", "lora_magnitude_vector")


def share_adapters(model: Any, *, is_new: bool) -> None:
    """Give layers of one weight one pair of adapters, in place.

    Raises UserError if they are not new, and differ.
    """
    for name, layer, first in _repeats(model):
        for of_kind in _MATRICES:
            own, shared = getattr(layer, of_kind), getattr(first, of_kind)
            if not is_new and not _are_equal(own, shared):
                raise UserError(
                    f"train.adapter: its adapters of {name} differ from those of another layer "
                    "that has the same weight, so they could not be merged into it",
                    do="--set train.adapter= for new ones",
                    code=ExitCode.PREFLIGHT,
                )
            setattr(layer, of_kind, shared)


def merge_once(model: Any) -> None:
    """Have a merge add the adapters to each weight once, in place; then the model is to be merged.

    The other layers of a weight have it by then, as it is theirs too.
    """
    for _, layer, _ in _repeats(model):
        layer.scaling = dict.fromkeys(layer.scaling, 0.0)


def _repeats(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each layer with adapters whose weight an earlier one has: (name, layer, that one)."""
    first_of: dict[int, Any] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))
            first = first_of.setdefault(id(weight), layer)
            if first is not layer:
                yield name, layer, first


def _are_equal(own: Any, other: Any) -> bool:
    pairs = zip(own.parameters(), other.parameters(), strict=True)
    return all(first.is_meta or torch.equal(first, two) for first, two in pairs)
