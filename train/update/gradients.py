"""Gradients: the buckets in which DDP sends them, and the norm by which they are clipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_

from ranks.torch_compat import norms_in_float32
from rundir.units import GIB, MIB

_MANY_GRADIENT_BYTES = GIB
# Megatron-LM's default, megatron/core/distributed/distributed_data_parallel.py, `bucket_size`:
# "large enough to remain bandwidth-bound rather than latency-bound".
_BUCKET_NUMEL, _BUCKET_NUMEL_PER_RANK = 40_000_000, 1_000_000


def bucket_cap_mib(model: Any, num_ranks: int) -> int | None:
    """Return the size of the buckets in which DDP sends gradients; None for torch's 25 MiB.

    From a gigabyte of gradients on, a bucket has 40 M values, or 1 M for each rank if that is more.
    It takes no more memory: all buckets together are as large as the gradients. A tensor that is
    larger has a bucket of its own.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if sum(weight.nbytes for weight in trained) < _MANY_GRADIENT_BYTES:
        return None
    numel = max(_BUCKET_NUMEL, _BUCKET_NUMEL_PER_RANK * num_ranks)
    return numel * max(weight.itemsize for weight in trained) // MIB


def fill_buckets(optimizer: torch.optim.Optimizer, pass_nothing: Callable[[], object]) -> None:
    """Move every gradient into DDP's buckets, by passes forward and backward that add nothing.

    DDP starts with one bucket for all gradients and, after the first pass, allocates buckets in the
    order in which gradients arrived (torch/nn/parallel/distributed.py, `_ddp_init_helper`).
    Gradients that are still views of the first one would keep it alive beside them, so they are
    freed in between. Gradients accumulated without communication have memory of their own until
    they have been in a bucket once. After two passes neither happens again as long as gradients are
    zeroed and not freed.
    """
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        pass_nothing()
    optimizer.zero_grad(set_to_none=False)


def gradient_norm(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of all gradients as one vector, a scalar in float32 whatever their dtype.

    torch's own is in bfloat16 for gradients in bfloat16, which is three digits.
    """
    norms = norms_in_float32([weight.grad for weight in weights if weight.grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_gradients(weights: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `max_norm`, if it is more; return what it was."""
    norm = gradient_norm(weights)
    clip_grads_with_norm_(weights, max_norm, norm)
    return norm
