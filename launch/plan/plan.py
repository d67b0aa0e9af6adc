"""The plan itself: what is needed, what is available, and whether it fits."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launch.plan.catalogue import COLUMNS, GpuKind
from launch.plan.fit import Fit, Need, context_need, gpu_need, host_need
from launch.plan.host import Phase, Weights, host_phases
from launch.plan.roofline import Roofline, roofline_of
from launch.plan.target import Target
from machine.memory.host_memory import Available, HostMemory
from machine.memory.limits import guard_threshold_bytes
from rundir.config import RunConfig
from rundir.footprint import Footprint

_FROM_GOOD_TO_BAD = (Fit.FITS, Fit.UNCERTAIN, Fit.DOES_NOT_FIT)


@dataclass(frozen=True, slots=True)
class Host:
    """The memory that this machine can still give, without and with its swap."""

    now: Available
    with_swap_bytes: int


def this_host() -> Host:
    """Return the memory available now, by the tightest limit, the machine's or a cgroup's."""
    memory = HostMemory()
    return Host(memory.now(), memory.now(with_swap=True).available_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """One way to update weights in bfloat16 (train.bf16_updates), and what a rank needs with it."""

    way: str
    need: Need
    peak_bytes: int  # of that, what the trace found
    verdict: Fit | None  # None where no GPU is known
    is_taken: bool

    def as_json(self) -> dict[str, Any]:
        """Return the way as it is in the plan."""
        need, fields = asdict(self.need), asdict(self)
        del fields["need"]
        return need | fields


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan for one configuration on one target."""

    config: RunConfig
    target: Target
    footprint: Footprint
    weights: Weights
    host: Host
    model_folder: Path | None = None  # of a model that was fetched, or is in the Hub's cache
    updates: tuple[Updates, ...] = ()  # if there was a choice

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The host memory, phase by phase."""
        return host_phases(self.footprint, self.config, self.target.device, self.weights)

    @property
    def gpu_need(self) -> Need:
        """The GPU memory that a rank needs."""
        return gpu_need(self.footprint, self.target.num_ranks, self.target.gpu)

    def on_gpu(self, kind: GpuKind) -> Fit:
        """Return whether a rank fits on a GPU of that kind."""
        need = gpu_need(self.footprint, self.target.num_ranks, kind)
        return need.verdict(kind.memory_bytes)

    @property
    def gpu_verdict(self) -> Fit | None:
        """The verdict for a rank's GPU; None on CPU, and where no GPU is known."""
        return None if self.target.gpu is None else self.on_gpu(self.target.gpu)

    @functools.cached_property
    def host_need(self) -> Need:
        """The host memory that the run needs in its worst phase."""
        guard = guard_threshold_bytes(self.config.limits, self.host.now.total_bytes)
        return host_need(self.phases, guard)

    @property
    def host_verdict(self) -> Fit:
        """The verdict for this machine's memory."""
        host = self.host
        return self.host_need.verdict(host.now.available_bytes, host.with_swap_bytes)

    @property
    def verdict(self) -> Fit | None:
        """The worse of the two verdicts; the host's counts only if it would run the job."""
        verdicts = [self.gpu_verdict] if self.gpu_verdict else []
        verdicts += [self.host_verdict] if self.target.is_here else []
        return max(verdicts, key=_FROM_GOOD_TO_BAD.index, default=None)

    @property
    def num_recomputed(self) -> int | None:
        """How many blocks are recomputed in backward; None if their number is not known."""
        asked, num = self.config.model.gradient_checkpointing, self.footprint.num_blocks
        if asked is False:
            return 0
        return (num if asked is True else min(int(asked), num)) if num else None

    @property
    def roofline(self) -> Roofline | None:
        """The least time of a step; None where no GPU is known, or its peak is not."""
        gpu, num_ranks = self.target.gpu, self.target.num_ranks
        if gpu is None:
            return None
        return roofline_of(self.config, self.footprint, num_ranks, gpu.name)

    @property
    def is_hopeless(self) -> bool:
        """True if what is stored permanently does not fit, however small the steps are."""
        footprint = self.footprint
        stored = (
            footprint.weights_bytes
            + footprint.gradients_bytes
            + footprint.optimizer_bytes
            + footprint.ddp_bytes
        )
        stored += context_need(self.target.num_ranks, self.target.gpu).least_bytes
        return self.target.gpu is not None and stored > self.target.gpu.memory_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the plan as in `--json` and in plan.json; docs/plan.md explains the fields."""
        target, launch = self.target, self.config.launch
        context, gpu = context_need(target.num_ranks, target.gpu), target.gpu
        on_gpu: dict[str, Any] = {}
        if target.device == "cuda":
            on_gpu = {
                "context_least_bytes": context.least_bytes,
                "context_most_bytes": context.most_bytes,
                "least_bytes": self.gpu_need.least_bytes,
                "most_bytes": self.gpu_need.most_bytes,
            }
        return {
            "v": 1,
            "profile": self.config.profile,
            "device": target.device,
            "num_ranks": target.num_ranks,
            "num_ranks_source": target.source,
            "longest_sample_tokens": self.config.data.max_seq_length,
            "verdict": self.verdict,
            "rank": asdict(self.footprint) | on_gpu,
            "bf16_updates": [update.as_json() for update in self.updates],
            "recomputed_blocks": self.num_recomputed,
            "roofline": self.roofline and asdict(self.roofline),
            "gpu": None if gpu is None else _gpu_json(gpu, self.on_gpu(gpu)),
            "gpus": [
                _gpu_json(kind, self.on_gpu(kind))
                for kind in (COLUMNS if target.device == "cuda" and gpu is None else [])
            ],
            "host": {
                "start": launch.start,
                "load": self.weights.load,
                "weights": self.weights.note,
                "phases": [asdict(phase) for phase in self.phases],
                "least_bytes": self.host_need.least_bytes,
                "most_bytes": self.host_need.most_bytes,
                **asdict(self.host.now),
                "available_with_swap_bytes": self.host.with_swap_bytes,
                "would_run_here": target.is_here,
                "verdict": self.host_verdict,
            },
        }


def _gpu_json(kind: GpuKind, verdict: Fit) -> dict[str, Any]:
    return {
        "name": kind.name,
        "memory_bytes": kind.memory_bytes,
        "source": kind.source,
        "verdict": verdict,
    }
