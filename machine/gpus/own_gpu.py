"""The free memory of a rank's own GPU, asked of NVML, for a rank whose CUDA does not start."""

from __future__ import annotations

from collections.abc import Mapping

from machine.gpus.nvml import driver_state
from machine.timeouts import within

_LONGEST_S = 10.0  # a rank that fails should not wait for a stuck driver


def own_gpu_free_bytes(environ: Mapping[str, str]) -> int | None:
    """Return the free memory of the GPU that LOCAL_RANK and CUDA_VISIBLE_DEVICES name, in bytes.

    Returns None if it is not known: NVML does not answer, or they name no GPU.
    """
    entries = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    try:
        entry = entries[int(environ.get("LOCAL_RANK", "0"))].strip()
        state = within(_LONGEST_S, driver_state)
    except (IndexError, ValueError, TimeoutError):
        return None
    for gpu in state.gpus if state and entry else ():
        is_it = entry == str(gpu.index) or (bool(gpu.uuid) and gpu.uuid == entry)
        if is_it and not gpu.fault:
            return gpu.free_bytes
    return None
