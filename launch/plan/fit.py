"""The three verdicts, since a prediction is not exact: it fits, it does not, it is too close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from launch.plan.catalogue import GpuKind
from launch.plan.host import Phase
from rundir.footprint import Footprint
from rundir.units import GIB

# Outside torch's allocator, least and most. Not measured on a GPU here yet.
#
# The CUDA context of a process, with the kernels it loads: about 300 MB since kernels are loaded on
# demand (pytorch#107667). It grows with the number of SMs: without any kernel 555 MiB on an RTX PRO
# 6000 Blackwell (llama.cpp#23604) and 612 MiB on a B200 (unsloth#8669).
_CONTEXT_GIB = (0.3, 0.6)
_HOPPER_CONTEXT_GIB = (0.6, 0.9)
# NCCL, one communicator; with one rank there is none. 544 MB between two A100, 688 MB between more
# (nccl#964), less without NVLink. From Hopper on, behind an NVSwitch, also buffers for NVLS:
# channels x 2 x buffer x ranks (nccl, src/transport/nvls.cc, `nvlsTotalSize`). Of 8 ranks those
# were 24 x 2 x 6 MiB x 8 = 2.3 GiB on H200 in 2024 (vllm#9699), 16 channels then 1.5 GiB; since
# buffers have 1 MiB they are 0.25 GiB, and all that 8 H100 had outside torch's allocator, the
# context too, was 1.06 GB (nccl#1685, 2025). torch 2.11 and later come with such a version.
_NCCL_GIB = (0.2, 1.0)
_HOPPER_NCCL_GIB = (0.4, 2.0)
# benchmarks/plan.py holds the tracer to 5 %; weights, gradients and optimizer states are exact.
_ERROR = 0.05
# Share that may be lost to fragmentation in torch's allocator, of everything but the weights, which
# are allocated first and for good. An assumption: not measured on a GPU yet.
_FRAGMENTS = 0.05
_HOST_ERROR = 0.10  # of constants measured on one machine


class Fit(StrEnum):
    """The result of comparing what is needed with what is available, from good to bad."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class Need:
    """A predicted need: the least and the most that the prediction allows for."""

    least_bytes: int
    most_bytes: int

    def verdict(self, limit_bytes: int, at_best_bytes: int | None = None) -> Fit:
        """Return the verdict for a limit; `at_best_bytes` is the limit if all went well."""
        if self.most_bytes <= limit_bytes:
            return Fit.FITS
        best_bytes = limit_bytes if at_best_bytes is None else max(limit_bytes, at_best_bytes)
        return Fit.DOES_NOT_FIT if self.least_bytes > best_bytes else Fit.UNCERTAIN


def context_need(num_ranks: int, kind: GpuKind | None) -> Need:
    """Return the GPU memory of a rank outside torch's allocator: the CUDA context and NCCL.

    For a GPU that is not known (None), the bounds are those of all.
    """
    older, newer = (_CONTEXT_GIB, _NCCL_GIB), (_HOPPER_CONTEXT_GIB, _HOPPER_NCCL_GIB)
    of_least = newer if kind is not None and kind.is_hopper_or_later else older
    of_most = newer if kind is None or kind.is_hopper_or_later else older
    num_parts = 2 if num_ranks > 1 else 1
    least = sum(bounds[0] for bounds in of_least[:num_parts])
    most = sum(bounds[1] for bounds in of_most[:num_parts])
    return Need(int(least * GIB), int(most * GIB))


def gpu_need(footprint: Footprint, num_ranks: int, kind: GpuKind | None) -> Need:
    """Return the GPU memory that a rank needs on such a GPU."""
    error = _ERROR * (footprint.activations_bytes + footprint.logits_bytes)
    fragments = _FRAGMENTS * (footprint.peak_bytes - footprint.weights_bytes)
    context = context_need(num_ranks, kind)
    return Need(
        int(footprint.peak_bytes - error) + context.least_bytes,
        int(footprint.peak_bytes + error + fragments) + context.most_bytes,
    )


def host_need(phases: Sequence[Phase], guard_bytes: int) -> Need:
    """Return the host memory that the run needs in its worst phase.

    `guard_bytes` is the free memory below which the guard ends a rank: it has to stay free.
    """
    least = max(phase.anonymous_bytes for phase in phases) * (1 - _HOST_ERROR)
    most = max(phase.anonymous_bytes * (1 + _HOST_ERROR) + phase.slack_bytes for phase in phases)
    return Need(int(least), int(most) + guard_bytes)
