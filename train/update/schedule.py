"""The learning rate of each step: a pure function of the step."""

from __future__ import annotations

import math

from rundir.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of `step` (from 0): linear warm-up, then the schedule, to its floor.

    Cosine: m + (1 - m) · (1 + cos πx) / 2 of the peak, with m = `min_lr_ratio` and x the share of
    the steps after the warm-up.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    after = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    left = (1 + math.cos(math.pi * after)) / 2 if config.schedule == "cosine" else 1 - after
    least = config.min_lr_ratio
    return config.learning_rate * (least + (1 - least) * left)
