"""The share of a sharded optimizer's states that the fullest rank has.

ZeroRedundancyOptimizer deals out whole tensors, the largest first, each to the rank that has least
so far. A short model's shares say nothing about those of the whole one, so they are taken from the
optimizer itself, made for the whole model and the real number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ranks.torch_compat import shares_of
from train.trace.storages import Storages

Shape = tuple[int, ...]
Bytes = tuple[int, int]  # exact, and in the allocator's blocks
ALL: Shape = (-1,)  # no shape of a tensor


def states_by_shape(optimizer: torch.optim.Optimizer, storages: Storages) -> dict[Shape, Bytes]:
    """Return the bytes of the states of a parameter of each shape; ALL is for all together.

    Parameters of one shape have equal states: ZeroRedundancyOptimizer takes one dtype only. A
    tensor that several states have in common, as tables of 8-bit optimizers, counts once.
    """
    seen: set[int] = set()
    states: dict[Shape, Bytes] = {}
    exact = held = 0
    for parameter, state in optimizer.state.items():
        fresh = [
            tensor for tensor in _tensors(state) if tensor.untyped_storage()._cdata not in seen
        ]
        seen |= {tensor.untyped_storage()._cdata for tensor in fresh}
        own = sum(tensor.nbytes for tensor in fresh)
        own_held = sum(storages.held_bytes(tensor.untyped_storage()) for tensor in fresh)
        states[tuple(parameter.shape)] = own, own_held
        exact, held = exact + own, held + own_held
    return states | {ALL: (exact, held)}


def largest_share(optimizer: Any, states: dict[Shape, Bytes]) -> Bytes:
    """Return the bytes of the states of the rank that has most.

    `optimizer` is a ZeroRedundancyOptimizer over the whole model. Raises KeyError for a parameter
    of a shape that `states` lacks.
    """

    def together(parameters: Iterable[torch.Tensor]) -> Bytes:
        exact, held = zip(
            *(states[tuple(parameter.shape)] for parameter in parameters), strict=True
        )
        return sum(exact), sum(held)

    return max(together(share) for share in shares_of(optimizer) if share)


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)]
