"""Loading of the weights into this rank's model: read ahead of use, or received from rank 0.

Where nobody has sent them, it is checked that all ranks start from the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import nn

from ranks.group import Ranks
from rundir.errors import ExitCode, UserError
from train.model.build import plain_model
from train.model.quantize import states_of

# The kernel reads no more per advice than a device's read-ahead, 128 KiB by default.
_CHUNK_BYTES = 128 * 1024
_CHUNK_NUMEL = 1 << 22  # summed at once: 32 MiB as int64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def read_ahead(files: Iterable[str]) -> None:
    """Have the kernel read `files` from disk in the background, in order.

    Mapped files are otherwise read page by page as they are touched, in whatever order a model
    needs them. This is only advice: it starts no thread, and where it cannot be given, as on macOS,
    loading is just slower.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for file in files:
        with suppress(OSError), open(file, "rb") as content:  # noqa: PTH123 - needs a descriptor
            descriptor = content.fileno()
            for begin in range(0, os.fstat(descriptor).st_size, _CHUNK_BYTES):
                os.posix_fadvise(descriptor, begin, _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)


def make_room(model: Any, ranks: Ranks) -> None:
    """Give a model on the meta device everything that rank 0's model has, except the values.

    Called by all ranks together. Afterwards dtypes, ties and what is trained are those of rank 0,
    on the device of `ranks`; DistributedDataParallel's constructor then sends the values, including
    buffers and frozen weights. Raises RuntimeError if the models differ.
    """
    described = ranks.share((_describe(model), plain_model(model).generation_config))
    if next(model.parameters()).device.type != "meta":
        return
    tensors, generation_config = described
    if odd := tensors.keys() ^ _describe(model).keys():
        raise RuntimeError(f"this rank's model is not rank 0's: {min(odd)} is in one of them only")
    made: dict[str, torch.Tensor] = {}
    for name, (key, shape, dtype, requires_grad) in tensors.items():
        owner, _, own_name = name.rpartition(".")
        module = model.get_submodule(owner)
        if key not in made:
            value = torch.empty(shape, dtype=dtype, device=ranks.device)
            is_parameter = own_name in module._parameters
            made[key] = nn.Parameter(value, requires_grad) if is_parameter else value
        setattr(module, own_name, made[key])
    # It comes with the weight files, and says how answers are generated.
    plain_model(model).generation_config = generation_config


def _describe(model: nn.Module) -> dict[str, tuple[str, torch.Size, torch.dtype, bool]]:
    """Return (key, shape, dtype, is trained) of each tensor; those with one key are tied."""
    keys: dict[int, str] = {}
    named = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    return {
        name: (keys.setdefault(id(tensor), name), tensor.shape, tensor.dtype, tensor.requires_grad)
        for name, tensor in named
    }


def check_same_weights(model: Any, ranks: Ranks) -> None:
    """Compare the parameters and buffers of all ranks, by checksums, over the control group.

    DistributedDataParallel's own way is to send rank 0's to all others: for 32B some 65 GB, which
    the others have read from the same files already, and which hides that they had read something
    else. Raises UserError on rank 0, which names the rank and the tensor that differ.
    """
    if ranks.world_size == 1:
        return
    own = checksums(model)
    digests = ranks.gather(own)
    for rank, other in enumerate(digests):
        if other == own:
            continue
        names = [name for name in (own | other) if own.get(name) != other.get(name)]
        raise UserError(
            f"the weights of rank {rank} are not those of rank 0: {names[0]} differs, of "
            f"{len(names)} of {len(own)} tensors",
            do="have the same model files on every node; or, unless it is QLoRA, have rank 0 send "
            "its own: --set launch.start=imports --set launch.load=broadcast",
            code=ExitCode.PREFLIGHT,
        )


@torch.no_grad()
def checksums(model: Any) -> dict[str, tuple[Any, ...]]:
    """Return dtype, shape and the sum of the bits of every parameter, scale and buffer, by name.

    The bits are read as integers, so that NaN is equal to itself and no sum is rounded.
    """
    named: dict[str, torch.Tensor] = dict(chain(model.named_parameters(), model.named_buffers()))
    for name, parameter in model.named_parameters():
        of_four_bits = enumerate(states_of(parameter))  # which DDP would not send
        named |= {f"{name} (scales {i})": tensor for i, tensor in of_four_bits}
    sums = [_sum_of_bits(tensor) for tensor in named.values()]
    values = torch.stack(sums).tolist() if sums else []
    return {
        name: (str(tensor.dtype), tuple(tensor.shape), value)
        for (name, tensor), value in zip(named.items(), values, strict=True)
    }


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum, int64, modulo 2**64; without a copy of the whole tensor."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    kind = _INTEGERS.get(tensor.element_size(), torch.uint8)
    for chunk in tensor.detach().reshape(-1).split(_CHUNK_NUMEL):
        total += chunk.view(kind).sum(dtype=torch.int64)
    return total
