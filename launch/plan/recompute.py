"""The choice of how many blocks are recomputed in backward (model.gradient_checkpointing).

None and all are traced. With the first N of L blocks recomputed, what the others keep is held until
backward comes to them; when it has come to the N, it is as if there were no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launch.plan.fit import Fit
from launch.plan.plan import Plan
from rundir.config import RunConfig
from rundir.footprint import WORK, Footprint


def traced(config: RunConfig, *, has_limit: bool) -> list[RunConfig]:
    """Return the configurations to trace: with all blocks recomputed, and before it with none.

    With all alone, or with none, if that was asked for, or if it is open and there `has_limit` no
    memory that the blocks could fit.
    """
    asked = config.model.gradient_checkpointing
    if asked == "auto" and not has_limit:
        return [recomputing(config, blocks=True)]
    if isinstance(asked, bool):
        return [config]
    return [recomputing(config, blocks=blocks) for blocks in (False, True)]


def recomputing(config: RunConfig, *, blocks: bool | int) -> RunConfig:
    """Return the configuration with so many blocks recomputed."""
    return replace(config, model=replace(config.model, gradient_checkpointing=blocks))


def fewest(config: RunConfig, plans: Sequence[Plan]) -> Plan:
    """Return the plan to take of those for `traced`: as many blocks as asked, or as few as fit.

    With all where the number of blocks is not known, and none do not fit; if a number was asked for
    there, as much memory is planned as with none.
    """
    if len(plans) == 1:
        return plans[0]
    (none, every), asked = plans, config.model.gradient_checkpointing
    num_blocks = every.footprint.num_blocks
    if asked != "auto":
        return every if 0 < num_blocks <= asked else _partly(none, every, asked)
    candidates = (_partly(none, every, num) for num in range(max(1, num_blocks)))
    return next((plan for plan in candidates if plan.gpu_verdict is Fit.FITS), every)


def _partly(none: Plan, every: Plan, num: int) -> Plan:
    """Return the plan in which `num` blocks are recomputed, fewer than all."""
    return replace(
        none,
        config=recomputing(none.config, blocks=num or False),
        footprint=between(none.footprint, every.footprint, num),
    )


def between(none: Footprint, every: Footprint, num: int) -> Footprint:
    """Return the footprint with the first `num` blocks recomputed."""
    kept = none.block_bytes - every.block_bytes  # by a block that is not
    first = _with_less(none, num * kept)
    later = _with_less(every, (every.num_blocks - num) * every.block_bytes)
    work = {
        name: (getattr(none, name) * (every.num_blocks - num) + getattr(every, name) * num)
        // every.num_blocks
        for name in WORK
        if every.num_blocks
    }
    return replace(max(first, later, key=lambda footprint: footprint.peak_bytes), **work)


def _with_less(footprint: Footprint, num_bytes: int) -> Footprint:
    return replace(
        footprint,
        activations_bytes=footprint.activations_bytes - num_bytes,
        peak_bytes=footprint.peak_bytes - num_bytes,
    )
