"""Private names of torch 2.11 to 2.13 that training uses; tests/test_compat.py checks for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]

PRIVATE = (  # module:attribute
    "torch:_foreach_norm",
    "torch._dynamo:config",
    "torch.cuda:_is_in_bad_fork",
    "torch.cuda.memory:_record_memory_history",
    "torch.cuda.memory:_snapshot",
    "torch.distributed.optim:ZeroRedundancyOptimizer._partition_parameters",
    "torch.distributed.distributed_c10d:_get_default_group",
    "torch.nn.attention.varlen:varlen_attn",  # a prototype: its arguments grow
    "torch.testing._internal.distributed.fake_pg:FakeStore",
    "torch.utils._python_dispatch:TorchDispatchMode",
)


def fake_store() -> Any:
    """Return a store for the "fake" backend, a group whose other ranks do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # no rank should load it

    return FakeStore()


def shares_of(optimizer: Any) -> list[list[torch.Tensor]]:
    """Return the parameters that each rank updates, in a ZeroRedundancyOptimizer."""
    partition: list[list[dict[str, Any]]] = optimizer._partition_parameters()
    return [
        [parameter for group in groups for parameter in group["params"]] for groups in partition
    ]


def default_group() -> Any:
    """Return the process group that init_process_group made."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_group()


def norms_in_float32(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the 2-norm of each tensor; all in one kernel where there is one."""
    return list(torch._foreach_norm(tensors, 2.0, dtype=torch.float32))


def import_compiler() -> None:
    """Import torch._dynamo, which the first optimizer of a process would import."""
    import torch._dynamo  # noqa: F401


def was_forked_with_cuda() -> bool:
    """Return whether this process was forked from one in which CUDA was initialised."""
    return bool(torch.cuda._is_in_bad_fork())


def note_allocations() -> None:
    """Have the allocator keep the Python stack of each allocation that is alive."""
    torch.cuda.memory._record_memory_history("state", context="state", stacks="python")


def memory_snapshot() -> dict[str, Any]:
    """Return the allocator's segments and blocks, with their stacks if those are kept."""
    return dict(torch.cuda.memory._snapshot())


def flash_varlen() -> Callable[..., torch.Tensor]:
    """Return torch's attention for samples of different lengths, as all versions take it.

    Importing it takes a second. Torch 2.11 takes fewer heads of keys than of queries without being
    told; later versions want `enable_gqa`.
    """
    from torch.nn.attention.varlen import varlen_attn

    kernel: Callable[..., Any] = varlen_attn
    has_option = "enable_gqa" in inspect.signature(kernel).parameters
    return partial(kernel, enable_gqa=True) if has_option else kernel
