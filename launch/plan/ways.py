"""What a configuration leaves to the plan: how weights are updated, which blocks are recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap

from launch.plan import recompute, updates
from launch.plan.plan import Plan
from launch.plan.target import Target
from rundir.config import RunConfig
from rundir.footprint import Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What `auto` stands for in a run, for train.bf16_updates and model.gradient_checkpointing."""

    bf16_updates: updates.Way
    gradient_checkpointing: bool | int


class Ways:
    """The ways in which a run may go; of each, `traced` has the configurations to trace.

    Copies of weights come before anything else that a GPU has room for: they decide what is
    learned, and recomputation only how fast.
    """

    def __init__(self, config: RunConfig, target: Target) -> None:
        has_limit = target.gpu is not None
        configs = updates.with_ways(config)
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
        return updates.chosen(
            [recompute.fewest(way, [next(plans) for _ in configs]) for way, configs in self._ways]
        )

    def decided(self, plan: Plan | None) -> Decided:
        """Return what `plan` decides; without one the best way to update, and all blocks."""
        config = self._ways[0][0] if plan is None else plan.config
        blocks = config.model.gradient_checkpointing
        return Decided(
            bf16_updates=updates.way_of(config),
            gradient_checkpointing=True if blocks == "auto" else blocks,
        )
