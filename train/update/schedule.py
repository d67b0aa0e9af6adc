"""The number of steps, and the learning rate at each: pure functions of the step."""

from __future__ import annotations

import math

from rundir.config import TrainConfig


def num_steps(config: TrainConfig, num_samples: int) -> int:
    """Return the optimizer steps of the run: `max_steps`, or those of `epochs`, rounded up."""
    if config.max_steps > 0:
        return config.max_steps
    exact = config.epochs * num_samples / config.global_batch_size
    return max(1, math.ceil(round(exact, 6)))  # 1.1 epochs of 100 by 10 are 11 steps, not 11.0…01


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
