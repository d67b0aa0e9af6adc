"""Resource limits of a rank, set before any heavy import, and errors that they may cause."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from machine.memory.host_memory import HostMemory
from machine.timeouts import within
from rundir.config import LimitsConfig
from rundir.errors import UserError
from rundir.units import GIB, MIB

RLIMIT_VARIABLE = "AIRLOCK_RLIMIT_AS_BYTES"  # passes the limit found by `launch` to the ranks

# Messages for the C library's ENOMEM in Python, torch's CPU allocator and C++.
_OUT_OF_MEMORY = (
    "cannot allocate memory",
    "can't allocate memory",
    "bad_alloc",
    "mps backend out of memory",
)
# CUDA's messages for ENOMEM in the driver. For a full GPU torch's allocator raises an error of its
# own; these come from starting CUDA and from reserving addresses (c10/cuda/CUDAException.cpp,
# driver_api.h).
_CUDA_OUT_OF_MEMORY = (
    "cuda error: out of memory",
    "cuda driver error: out of memory",
    "error 2: out of memory",
)
_GPU_ERROR = "OutOfMemoryError"  # torch's, matched by name as torch may not be imported
_GPU_IS_FULL_BYTES = 2 * GIB  # a context and its libraries take up to 1.6 GiB
_applied: set[int] = set()  # values that RLIMIT_AS was set to here, in bytes
_OOM_SCORE = 500  # counts as half of all memory on top of its own (proc(5): -1000 to 1000)
# The guard's threshold: this share of the memory, within these bounds.
_GUARD_SHARE, _GUARD_LEAST_BYTES, _GUARD_MOST_BYTES = 0.02, 64 * MIB, GIB
_LONGEST_S = 10.0  # a rank that fails should not wait for a stuck driver


def check_limits(limits: LimitsConfig) -> None:
    """Raise UserError for a limit above the hard limit, or a guard that would always act."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY and limits.rlimit_as_gib * GIB > hard:
        raise UserError(
            f"limits.rlimit_as_gib asks for {limits.rlimit_as_gib:g} GiB of address space; "
            f"the hard limit is {hard / GIB:.1f} GiB",
            do="raise it with `ulimit -Hv`, or set AIRLOCK_RLIMIT_AS_GIB=0",
        )
    total_bytes = HostMemory().now().total_bytes
    if limits.guard_gib * GIB >= total_bytes:
        raise UserError(
            f"limits.guard_gib asks for {limits.guard_gib:g} GiB to be kept free; "
            f"there are {total_bytes / GIB:.1f} GiB in all",
            do="AIRLOCK_LIMITS_GUARD_GIB=-1 lets Airlock choose",
        )


def apply_limits(limits: LimitsConfig) -> dict[str, int | None]:
    """Set this process's limits; return them as the fields of the `limits` event.

    A user's RLIMIT_AS takes precedence over the predicted one (machine/memory/address_space.py).
    The limit on open files is raised to the hard limit: each rank holds a socket for every other
    rank, and shards.
    """
    wanted = int(limits.rlimit_as_gib * GIB)
    address_space = handed_on(os.environ) if wanted < 0 else wanted
    if address_space > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            address_space = min(address_space, hard)
        resource.setrlimit(resource.RLIMIT_AS, (address_space, hard))
        _applied.add(address_space)
    _, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_files, hard_files))
    return {
        "rlimit_as_bytes": _soft(resource.RLIMIT_AS),
        "rlimit_nofile": _soft(resource.RLIMIT_NOFILE),
    }


def handed_on(environ: Mapping[str, str]) -> int:
    """Return the limit found by `launch`, in bytes; 0 if none, as in a rank it did not start."""
    return int(environ.get(RLIMIT_VARIABLE) or 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error is a failed allocation, on the host or on a GPU.

    No other cause has these types or messages.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == _GPU_ERROR:
        return True
    return any(sign in str(error).casefold() for sign in (*_OUT_OF_MEMORY, *_CUDA_OUT_OF_MEMORY))


def note_address_space(error: BaseException) -> None:
    """Add a note on RLIMIT_AS, if it is set, to an out-of-memory error that it may have caused.

    That is an error of the host, or one of CUDA that is not torch's own for a full GPU.
    """
    limit = _soft(resource.RLIMIT_AS)
    if limit is None or type(error).__name__ == _GPU_ERROR:
        return
    is_cudas = any(sign in str(error).casefold() for sign in _CUDA_OUT_OF_MEMORY)
    free_bytes = own_gpu_free_bytes(os.environ) if is_cudas else None
    if free_bytes is not None and free_bytes < _GPU_IS_FULL_BYTES:
        error.add_note(f"the GPU is full: {free_bytes / MIB:.0f} MiB are free; see `nvidia-smi`")
        return
    reserved = psutil.Process().memory_info().vms
    off = "AIRLOCK_RLIMIT_AS_GIB=0" if limit in _applied else "`ulimit -v unlimited`"
    cuda = "; CUDA reserves more addresses than GPU and host have memory" if is_cudas else ""
    error.add_note(
        f"RLIMIT_AS of this process is {limit / GIB:.1f} GiB, of which {reserved / GIB:.1f} "
        f"are reserved: {off} removes the limit{cuda}"
    )


def die_before_others() -> None:
    """Make the kernel's OOM killer choose this process before the launcher.

    A process may always raise its own score; a higher score is kept.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # a sandbox may hide it
        score.write_text(str(max(_OOM_SCORE, int(score.read_text()))))


def _soft(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def guard_threshold_bytes(limits: LimitsConfig, total_bytes: int) -> int:
    """Return the free memory below which the guard acts, in bytes; 0 means it never does."""
    if limits.guard_gib < 0:
        return int(min(max(total_bytes * _GUARD_SHARE, _GUARD_LEAST_BYTES), _GUARD_MOST_BYTES))
    return int(limits.guard_gib * GIB)


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
