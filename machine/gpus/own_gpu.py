"""The free memory of a rank's own GPU, asked of NVML, for a rank whose CUDA does not start."""

from __future__ import annotations

from collections.abc import Mapping

from machine.timeouts import within

_LONGEST_S = 10.0  # a rank that fails should not wait for a stuck driver


def own_gpu_free_bytes(environ: Mapping[str, str]) -> int | None:
    """Return the free memory of the GPU that LOCAL_RANK and CUDA_VISIBLE_DEVICES name, in bytes.

    Returns None if it is not known: NVML does not answer, or they name no GPU.
    """
    entries = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    try:
        entry = entries[int(environ.get("LOCAL_RANK", "0"))].strip()
        return within(_LONGEST_S, lambda: _free_bytes(entry))
    except (IndexError, ValueError, TimeoutError):
        return None


def _free_bytes(entry: str) -> int | None:
    """Ask for the GPU of that number or UUID."""
    import pynvml as nv  # 3 MB that other ranks do without

    try:
        nv.nvmlInit()
        if entry.isdecimal():
            gpu = nv.nvmlDeviceGetHandleByIndex(int(entry))
        else:
            gpu = nv.nvmlDeviceGetHandleByUUID(entry)
        return int(nv.nvmlDeviceGetMemoryInfo(gpu).free)
    except nv.NVMLError:
        return None
