"""The memory of a device: what a rung has taken of it at most."""

from __future__ import annotations

from typing import Any

from machine.memory.peak_memory import high_water


def peak_memory_bytes(device: Any) -> int:
    """Return the peak memory that torch held on a GPU, or that this process had resident on CPU."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return high_water("self").get("VmHWM", 0)
