"""The size of the buckets in which DDP sends gradients."""

from __future__ import annotations

from typing import Any

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
    trained = [one for one in model.parameters() if one.requires_grad]
    if sum(one.nbytes for one in trained) < _MANY_GRADIENT_BYTES:
        return None
    numel = max(_BUCKET_NUMEL, _BUCKET_NUMEL_PER_RANK * num_ranks)
    return numel * max(one.itemsize for one in trained) // MIB
