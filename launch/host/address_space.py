"""RLIMIT_AS of a rank: what it is predicted to reserve, and the limit that follows from it.

The limit counts reserved addresses, not memory in use. So it is the sum of what a rank reserves
without using it and of all that it could use, which is the whole host: nothing that fits can meet
it, and one allocation gone wild ends in an exception with a traceback, in the rank that made it.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.host.address_probe import probe
from launch.host.host_memory import HostMemory, host_swap_free_bytes
from launch.host.limits import RLIMIT_VARIABLE
from launch.host.rank_environment import Variable
from rundir.config import LimitsConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.prepared import Prepared
from rundir.units import GIB, MIB

# VmPeak of a rank of the tiny profile in training, torch 2.13 on CPU, is 1.35 GiB, its 8 threads
# included. With CUDA the libraries alone are larger; by how much differs, so the least is not.
_LIBRARIES_LEAST = 5 * GIB // 4
_LIBRARIES_MOST = 4 * GIB
_CUDA_LIBRARIES_MOST = 24 * GIB  # its wheels hold some 7 GiB, of which parts are mapped twice
_OTHER_THREADS = 8  # of gloo, autograd and DDP: seen in the same rank
_ARENA = 128 * MIB  # glibc maps HEAP_MAX_SIZE twice for a thread's arena, and trims it (arena.c)
_STACK = 8 * MIB  # Linux's usual `ulimit -s`
# CUDA reserves addresses for all memory it could unify, the host's too: 65 GB on a host with one
# 2 GB GPU (tensorflow#10040). Expandable segments reserve 9/8 of a GPU (pytorch#186213).
_CUDA_CONTEXT = 64 * GIB
# malloc, and the allocators of Arrow and of others, keep addresses of what was given back to them.
_KEPT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Part:
    """One reason to reserve addresses: by every rank before it trains, and at most."""

    what: str
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The parts, and how many threads a rank starts at least, with stacks of what size."""

    parts: Sequence[Part]
    num_threads: int
    stack_bytes: int

    @property
    def least_bytes(self) -> int:
        """What a rank reserves before it trains."""
        return sum(part.least_bytes for part in self.parts)

    @property
    def mapped_bytes(self) -> int:
        """The same without the stacks."""
        return self.least_bytes - self.num_threads * self.stack_bytes

    @property
    def most_bytes(self) -> int:
        """What no rank that fits this host reserves."""
        return sum(part.most_bytes for part in self.parts)

    def in_words(self) -> str:
        """The sum, with its parts."""
        parts = [f"{part.most_bytes / GIB:.1f} GiB {part.what}" for part in self.parts]
        return f"{self.most_bytes / GIB:.1f} GiB: {', '.join(parts)}"


def predict(files: Sequence[Path], omp_num_threads: str, gpu_bytes: Sequence[int]) -> Prediction:
    """What a rank of this host reserves that maps `files` and sees GPUs of `gpu_bytes` each.

    `omp_num_threads` is OMP_NUM_THREADS: the user's own may be no number, and then means all cores.
    """
    num_cores = len(os.sched_getaffinity(0))
    first, _, _ = omp_num_threads.partition(",")
    num_threads = (int(first) if first.isdecimal() else num_cores) + _OTHER_THREADS
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK if stack == resource.RLIM_INFINITY else stack
    sizes = [path.stat().st_size for path in files]
    memory = HostMemory().now()
    host = memory.total_bytes + host_swap_free_bytes()
    libraries = _CUDA_LIBRARIES_MOST if gpu_bytes else _LIBRARIES_MOST
    parts = [
        Part("for Python, torch and what they import", _LIBRARIES_LEAST, libraries),
        Part(
            f"for stacks and malloc arenas of up to {2 * num_threads} threads",
            num_threads * stack,
            2 * num_threads * (stack + _ARENA),
        ),
        # safetensors maps a file a second time while it opens it.
        Part(
            f"for the model and the data, mapped from files ({len(sizes)})",
            sum(sizes) + max(sizes, default=0),
            2 * sum(sizes),
        ),
    ]
    if gpu_bytes:
        total = sum(gpu_bytes)
        parts += [
            Part("for torch's CUDA allocator, 9/8 of the GPUs", 0, total * 9 // 8),
            Part("for the CUDA driver", 0, total + host + _CUDA_CONTEXT),
        ]
    kept = int(host * _KEPT_SHARE)
    parts += [
        Part(f"in use, all of {memory.where}", 0, host),
        Part("that allocators may keep when it is free again", 0, kept),
    ]
    return Prediction(parts, num_threads, stack)


def mapped_files(prepared: Prepared) -> list[Path]:
    """What a rank maps: the weights, the data, the checkpoint it goes on from."""
    found = weight_files(Path(prepared.model_path))
    if prepared.resume_from is not None:
        found += weight_files(Path(prepared.resume_from))
    of_data = [data for data in (prepared.train, prepared.evaluation) if data is not None]
    paths = [Path(path) for data in of_data for path in data.paths]
    paths += [Path(name) for name in prepared.train.mapped]
    for path in paths:
        found += [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return found


def weight_files(folder: Path) -> list[Path]:
    """The weights in a model's folder: safetensors, or torch's own where there are none."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def rank_limit(limits: LimitsConfig, predicted: Prediction) -> Variable:
    """The limit of each rank, tried out, as the variable that hands it on; 0 is none.

    Raises UserError when someone set one that no rank can start with.
    """
    if limits.rlimit_as_gib == 0:
        return Variable(RLIMIT_VARIABLE, "0", "limits.rlimit_as_gib", "none is wanted")
    inherited, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limits.rlimit_as_gib > 0:
        limit, source = int(limits.rlimit_as_gib * GIB), "limits.rlimit_as_gib"
    elif inherited != resource.RLIM_INFINITY and inherited < predicted.most_bytes:
        limit, source = inherited, "ulimit -v"
    else:
        limit, source = predicted.most_bytes, "predicted"
    failure = probe(limit, predicted.mapped_bytes, predicted.num_threads)
    if failure is None:
        reason = predicted.in_words() if source == "predicted" else f"{limit / GIB:.1f} GiB, as set"
        return Variable(RLIMIT_VARIABLE, str(limit), source, reason)
    if source == "predicted":
        why = f"none: with {limit / GIB:.1f} GiB a trial process failed: {failure}"
        return Variable(RLIMIT_VARIABLE, "0", source, why)
    raise _too_low(limit, source, predicted, failure)


def _too_low(limit: int, source: str, predicted: Prediction, failure: str) -> UserError:
    least_gib = math.ceil((predicted.least_bytes + GIB // 4) / GIB)
    if source == "ulimit -v":
        do = f"ulimit -v {least_gib * GIB // 1024}, or more, or unlimited"
    else:
        do = f"AIRLOCK_RLIMIT_AS_GIB={least_gib}, or more; -1 is predicted, 0 is none"
    return UserError(
        f"{source}: no rank starts with {limit / GIB:.2f} GiB of address space ({failure}); "
        f"before it trains, each reserves {predicted.least_bytes / GIB:.2f} GiB",
        do=do,
        code=ExitCode.PREFLIGHT,
    )
