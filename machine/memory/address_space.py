"""The address space that a rank is predicted to reserve, from which its RLIMIT_AS follows.

RLIMIT_AS counts reserved addresses, not memory in use. So the limit is the sum of what a rank
reserves without using and of all that it could use, which is the whole host. A rank that fits never
reaches it; a runaway allocation raises an exception with a traceback, in the rank that made it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from machine.cores.cores import threads_in
from machine.memory.host_memory import HostMemory, host_swap_free_bytes, machine_memory_bytes
from rundir.prepared import Prepared
from rundir.units import GIB, MIB

# VmPeak of a training rank of the tiny profile with torch 2.13 on CPU is 1.35 GiB, including its 8
# threads. CUDA's libraries add to that by amounts that vary, so the lower bound leaves them out.
_LIBRARIES_LEAST = 5 * GIB // 4
_LIBRARIES_MOST = 4 * GIB
_CUDA_LIBRARIES_MOST = 24 * GIB  # the wheels hold some 7 GiB, parts of which are mapped twice
_OTHER_THREADS = 8  # of gloo, autograd and DDP, counted in the same rank
_ARENA = 128 * MIB  # glibc maps twice HEAP_MAX_SIZE for a thread's arena, then trims it (arena.c)
_STACK = 8 * MIB  # the usual `ulimit -s` on Linux
# CUDA reserves addresses for all memory it could unify: that of every visible GPU and of the whole
# machine, whatever a cgroup leaves of it; 65 GB with one 2 GB GPU (tensorflow#10040).
_CUDA_CONTEXT = 64 * GIB
# Expandable segments reserve 9/8 of a GPU for each pool and stream (pytorch#186213, #192269): the
# small and the large pool of the stream that computes, and a pool of another stream or of a graph.
NUM_POOLS = 3
# malloc, and allocators such as Arrow's, keep the addresses of freed memory.
_KEPT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class AddressUse:
    """One use of address space: the least before training starts, and the most."""

    what: str
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted address space by part, with the least number of threads and their stack size."""

    parts: Sequence[AddressUse]
    num_threads: int
    stack_bytes: int
    in_use_bytes: int = 0  # the part that a rank could use, all of the host
    on_gpus: bool = False

    @property
    def least_bytes(self) -> int:
        """The least that a rank reserves before it trains, in bytes."""
        return sum(part.least_bytes for part in self.parts)

    @property
    def mapped_bytes(self) -> int:
        """The value of `least_bytes` without the thread stacks."""
        return self.least_bytes - self.num_threads * self.stack_bytes

    @property
    def most_bytes(self) -> int:
        """The upper bound, in bytes, for any rank that fits this host."""
        return sum(part.most_bytes for part in self.parts)

    def in_words(self) -> str:
        """Return the upper bound and its parts as text."""
        parts = [f"{part.most_bytes / GIB:.1f} GiB {part.what}" for part in self.parts]
        return f"{self.most_bytes / GIB:.1f} GiB: {', '.join(parts)}"


def predict(files: Sequence[Path], omp_num_threads: str, gpu_bytes: Sequence[int]) -> Prediction:
    """Predict the address space of a rank on this host that maps `files`.

    `gpu_bytes` holds the memory of each GPU it sees. `omp_num_threads` is OMP_NUM_THREADS; a value
    of the user's that is not a number means all cores.
    """
    num_threads = (threads_in(omp_num_threads) or len(os.sched_getaffinity(0))) + _OTHER_THREADS
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK if stack == resource.RLIM_INFINITY else stack
    sizes = [path.stat().st_size for path in files]
    memory = HostMemory().now()
    host = memory.total_bytes + host_swap_free_bytes()
    libraries = _CUDA_LIBRARIES_MOST if gpu_bytes else _LIBRARIES_MOST
    parts = [
        AddressUse("for Python, torch and what they import", _LIBRARIES_LEAST, libraries),
        AddressUse(
            f"for stacks and malloc arenas of up to {2 * num_threads} threads",
            num_threads * stack,
            2 * num_threads * (stack + _ARENA),
        ),
        # safetensors maps a file a second time while opening it.
        AddressUse(
            f"for the model and the data, mapped from files ({len(sizes)})",
            sum(sizes) + max(sizes, default=0),
            2 * sum(sizes),
        ),
    ]
    if gpu_bytes:
        total = sum(gpu_bytes)
        parts += [
            AddressUse(
                f"for torch's CUDA allocator, {NUM_POOLS} pools of 9/8 of the GPUs",
                0,
                NUM_POOLS * total * 9 // 8,
            ),
            AddressUse(
                "for the CUDA driver, as large as the GPUs and the machine's memory",
                0,
                total + machine_memory_bytes() + _CUDA_CONTEXT,
            ),
        ]
    kept = int(host * _KEPT_SHARE)
    parts += [
        AddressUse(f"in use, all of {memory.where}", 0, host),
        AddressUse("that allocators may keep when it is free again", 0, kept),
    ]
    return Prediction(parts, num_threads, stack, host, on_gpus=bool(gpu_bytes))


def mapped_files(prepared: Prepared) -> list[Path]:
    """Return the files that a rank maps: weights, data and the checkpoint to resume from."""
    files = weight_files(Path(prepared.model_path))
    if prepared.resume_from is not None:
        files += weight_files(Path(prepared.resume_from))
    of_data = [data for data in (prepared.train, prepared.evaluation) if data is not None]
    of_data += prepared.evaluations.values()
    paths = [Path(path) for data in of_data for path in data.paths]
    paths += [Path(name) for name in prepared.train.mapped]
    for path in paths:
        files += [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return files


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files in a model's folder: safetensors, or torch's format if none."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
