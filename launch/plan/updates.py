"""The choice of how weights in bfloat16 are updated (train.bf16_updates): what learns and fits.

Copies in float32 learn as well as training in float32 does, and take 4 bytes a weight, divided
among the ranks where the optimizer's states are. Stochastic rounding takes nothing. So the first is
chosen where it fits, or where no limit is known. (docs/decisions/0021-updates-in-bfloat16.md)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from launch.plan.fit import Fit
from launch.plan.plan import Plan, Updates
from rundir.config import RunConfig

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
