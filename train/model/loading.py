"""Loading of the weights into this rank's model: read ahead of use, or received from rank 0."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import nn

from ranks.group import Ranks
from train.model.build import plain_model

# The kernel reads no more per advice than a device's read-ahead, 128 KiB by default.
_CHUNK_BYTES = 128 * 1024


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
