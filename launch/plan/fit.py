"""The three verdicts, since a prediction is not exact: it fits, it does not, it is too close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from launch.plan.host import Phase
from rundir.footprint import Footprint
from rundir.units import GIB

# The CUDA context of a process, with the kernels it loads: about 300 MB since kernels are loaded on
# demand (pytorch#107667), more on newer GPUs. NCCL: 544 MB between two A100, 688 MB between more
# (nccl#964), less without NVLink. Not measured on a GPU here yet.
_CONTEXT_GIB = (0.3, 0.6)
_NCCL_GIB = (0.2, 1.0)  # with one rank there is none
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


def context_need(num_ranks: int) -> Need:
    """Return the GPU memory of a rank outside torch's allocator: the CUDA context and NCCL."""
    parts = (_CONTEXT_GIB, _NCCL_GIB) if num_ranks > 1 else (_CONTEXT_GIB,)
    least, most = (sum(bounds) for bounds in zip(*parts, strict=True))
    return Need(int(least * GIB), int(most * GIB))


def gpu_need(footprint: Footprint, num_ranks: int) -> Need:
    """Return the GPU memory that a rank needs."""
    error = _ERROR * (footprint.activations_bytes + footprint.logits_bytes)
    fragments = _FRAGMENTS * (footprint.peak_bytes - footprint.weights_bytes)
    context = context_need(num_ranks)
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
