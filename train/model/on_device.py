"""Integers of the host on the device of the model, in one copy that nothing waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def on_device(
    tensors: Sequence[torch.Tensor | None], device: torch.device | str
) -> list[torch.Tensor | None]:
    """Return integer tensors of the host on `device`."""
    if torch.device(device).type == "cuda":
        return copied_at_once(tensors, device)
    # MPS would copy from memory that is free again by then (pytorch#139550, #189690).
    return [None if tensor is None else tensor.to(device) for tensor in tensors]


def copied_at_once(
    tensors: Sequence[torch.Tensor | None],
    device: torch.device | str,
    pin: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.pin_memory,
) -> list[torch.Tensor | None]:
    """Return integer tensors of the host on `device`, by one copy that nothing waits for.

    `pin` moves them into page-locked memory: from other memory the driver may wait for the device.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    together = pin(torch.cat([tensor.flatten().long() for tensor in given]))
    parts = iter(together.to(device, non_blocking=True).split([tensor.numel() for tensor in given]))
    return [
        None if tensor is None else next(parts).view(tensor.shape).to(tensor.dtype)
        for tensor in tensors
    ]
