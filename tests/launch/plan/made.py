"""Plans with made-up figures, for tests of what is done with them."""

from __future__ import annotations

from dataclasses import replace

from launch.plan.catalogue import gpu_kind
from launch.plan.host import Weights
from launch.plan.plan import Host, Plan
from launch.plan.target import Target
from machine.memory.host_memory import Available
from rundir.config import LaunchConfig, RunConfig, TrainConfig
from rundir.footprint import Footprint
from rundir.units import GIB

MAPPED = Weights(load="mmap", is_converted=False, reading_bytes=0, note="")
CONFIG = RunConfig(
    profile="32b",
    launch=LaunchConfig(num_ranks=8),
    architecture={"model_type": "qwen2", "vocab_size": 100, "hidden_size": 8},
)
FULL = replace(CONFIG, train=TrainConfig(method="full"))
# 10 G parameters in bfloat16, of which 100 M in float32 are trained.
FOOTPRINT = Footprint(
    num_parameters=10_100_000_000,
    num_trainable=100_000_000,
    weights_bytes=20_400_000_000,
    gradients_bytes=400_000_000,
    optimizer_bytes=800_000_000,
    ddp_bytes=0,
    activations_bytes=3_000_000_000,
    logits_bytes=1_000_000_000,
    peak_bytes=25_600_000_000,
    peak_moment="backward",
)


def host_of(gib: float) -> Host:
    """Return a host with that much available memory, and no swap."""
    size = int(gib * GIB)
    now = Available(available_bytes=size, total_bytes=size, where="the host")
    return Host(now, size)


def on_gpus(name: str, *, is_here: bool = False, host_gib: float = 500) -> Plan:
    """Return a plan for eight ranks, each on such a GPU."""
    target = Target(
        device="cuda", num_ranks=8, source="a test", gpu=gpu_kind(name), is_here=is_here
    )
    return Plan(
        config=CONFIG, target=target, footprint=FOOTPRINT, weights=MAPPED, host=host_of(host_gib)
    )
