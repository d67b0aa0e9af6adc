"""The target of a plan: which device, how many ranks, on this machine or on another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from launch.plan.catalogue import VISIBLE_SHARE, GpuKind, gpu_kind
from launch.plan.question import Device
from machine.gpus.devices import A_NODE, MAX_RANKS, Placement, installed_gpus, place, visible_gpus
from machine.typed import again
from rundir.config import RunConfig
from rundir.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The place of a run; without a `gpu` it is on CPU, or on unknown GPUs."""

    device: Device
    num_ranks: int
    source: str  # of that number
    gpu: GpuKind | None
    is_here: bool  # on this machine, so that its memory is the host's


def target_of_placement(placement: Placement) -> Target:
    """Return the target of a run on this machine, or of one that lacks its GPUs here."""
    gpu = None
    if placement.gpus:
        least = min(placement.gpus, key=lambda gpu: gpu.memory_bytes)
        visible = int(least.memory_bytes * VISIBLE_SHARE)
        gpu = GpuKind(least.name, visible, "NVML's total, less what the driver keeps")
    return Target(
        device=placement.device,
        num_ranks=placement.num_ranks,
        source=placement.source,
        gpu=gpu,
        is_here=placement.is_here,
    )


def choose_target(
    config: RunConfig, asked: tuple[int, str] | None, gpu: str | None, environ: Mapping[str, str]
) -> Target:
    """Return the target of `airlock plan`.

    `gpu` is a name in the catalogue, `asked` is (ranks, who asks for them). Raises UserError for an
    unknown GPU and for an impossible number of ranks.
    """
    kind = None if gpu is None else gpu_kind(gpu)
    visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    needs_gpu = config.launch.needs_gpu or config.launch.device == "cuda"
    if kind is None and (visible or not needs_gpu):
        return target_of_placement(place(config, asked, visible))
    number, source = asked or (A_NODE, "a node of eight, as none is named")
    if not 1 <= number <= MAX_RANKS:
        raise UserError(
            f"{source} asks for {number} ranks; a plan is for 1 to {MAX_RANKS}",
            do=again(config.profile, {"NUM_GPUS": str(A_NODE)}),
        )
    return Target(device="cuda", num_ranks=number, source=source, gpu=kind, is_here=False)


def with_ranks(config: RunConfig, num_ranks: int) -> RunConfig:
    """Return `config` for that many ranks."""
    launch = dataclasses.replace(config.launch, num_ranks=num_ranks)
    return dataclasses.replace(config, launch=launch)
