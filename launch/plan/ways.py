"""What a configuration leaves to the plan: how weights are updated, which blocks are recomputed.

Copies in float32 learn as well as training in float32 does, and take 4 bytes a weight, divided
among the ranks where the optimizer's states are. Stochastic rounding takes nothing. So the first is
chosen where it fits, or where no limit is known. (docs/decisions/0021-updates-in-bfloat16.md)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Literal, get_args

from launch.plan import recompute
from launch.plan.fit import Fit
from launch.plan.plan import Plan, Updates
from launch.plan.target import Target
from rundir.config import RunConfig
from rundir.footprint import Footprint

Way = Literal["master", "stochastic", "plain"]
BY_PREFERENCE: tuple[Way, ...] = ("master", "stochastic")


def ways_of(config: RunConfig) -> tuple[Way, ...]:
    """Return the ways in which this run may update its weights, the best first."""
    train = config.train
    if train.bf16_updates != "auto":
        return (train.bf16_updates,)
    is_a_choice = train.method == "full" and config.model.dtype == "bfloat16"
    return BY_PREFERENCE if is_a_choice else BY_PREFERENCE[:1]


def with_ways(config: RunConfig) -> list[RunConfig]:
    """Return the configuration once for each of `ways_of` it."""
    return [
        dataclasses.replace(config, train=dataclasses.replace(config.train, bf16_updates=updates))
        for updates in ways_of(config)
    ]


def chosen(plans: Sequence[Plan]) -> Plan:
    """Return the first of `plans` that fits, else the last; it lists all of them.

    They are for `with_ways`, in order. Where no GPU is known, the first is taken.
    """
    fits = (plan for plan in plans if plan.gpu_verdict in (None, Fit.FITS))
    taken = next(fits, plans[-1])
    if len(plans) == 1:
        return taken
    choices = tuple(
        Updates(
            way=plan.config.train.bf16_updates,
            need=plan.gpu_need,
            peak_bytes=plan.footprint.peak_bytes,
            verdict=plan.gpu_verdict,
            is_taken=plan is taken,
        )
        for plan in plans
    )
    return dataclasses.replace(taken, updates=choices)


def way_of(config: RunConfig) -> Way:
    """Return the way that one of `with_ways` is."""
    updates = config.train.bf16_updates
    assert updates in get_args(Way)
    return updates  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What `auto` stands for in a run, for train.bf16_updates and model.gradient_checkpointing."""

    bf16_updates: Way
    gradient_checkpointing: bool | int


class Ways:
    """The ways in which a run may go; of each, `traced` has the configurations to trace.

    Copies of weights come before anything else that a GPU has room for: they decide what is
    learned, and recomputation only how fast.
    """

    def __init__(self, config: RunConfig, target: Target) -> None:
        has_limit = target.gpu is not None
        configs = with_ways(config)
        is_auto = config.model.gradient_checkpointing == "auto"
        self.are_open = has_limit and (len(configs) > 1 or is_auto)  # the plan decides
        self._ways = [
            (way, recompute.traced(way, has_limit=has_limit))
            for way in (configs if has_limit else configs[:1])
        ]

    @property
    def traced(self) -> list[RunConfig]:
        """The configurations to trace, in order."""
        return [config for _, configs in self._ways for config in configs]

    def chosen(
        self, footprints: Sequence[Footprint], make_plan: Callable[[RunConfig, Footprint], Plan]
    ) -> Plan:
        """Return the plan to take; it lists the ways of updating weights.

        The `footprints` are those of `traced`, and `make_plan` makes the plan of each.
        """
        plans = starmap(make_plan, zip(self.traced, footprints, strict=True))
        return chosen(
            [recompute.fewest(way, [next(plans) for _ in configs]) for way, configs in self._ways]
        )

    def decided(self, plan: Plan | None) -> Decided:
        """Return what `plan` decides; without one the best way to update, and all blocks."""
        config = self._ways[0][0] if plan is None else plan.config
        blocks = config.model.gradient_checkpointing
        return Decided(
            bf16_updates=way_of(config),
            gradient_checkpointing=True if blocks == "auto" else blocks,
        )
