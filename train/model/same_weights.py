"""A check that all ranks start from the same weights, where nobody has sent them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from ranks.group import Ranks
from rundir.errors import ExitCode, UserError
from train.model.quantize import states_of

_CHUNK_NUMEL = 1 << 22  # summed at once: 32 MiB as int64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
