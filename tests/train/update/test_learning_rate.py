"""Learning rates at the boundaries, where off-by-one errors live."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rundir.config import TrainConfig
from train.update.optimizer import learning_rate

PEAK = 1e-3


def config(**settings: Any) -> TrainConfig:
    return replace(TrainConfig(learning_rate=PEAK, warmup_steps=4), **settings)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rate_rises_evenly_to_its_peak_and_reaches_it_with_the_last_warm_up_step(
    schedule: str,
) -> None:
    rates = [learning_rate(config(schedule=schedule), step, 20) for step in range(5)]
    assert rates == pytest.approx([PEAK / 4, PEAK / 2, PEAK * 3 / 4, PEAK, PEAK])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("floor", [None, 0.0, 0.5])
def test_the_rate_falls_to_a_tenth_or_the_floor_that_is_set_and_a_constant_one_has_none(
    schedule: str, floor: float | None
) -> None:
    settings = config(schedule=schedule, **({} if floor is None else {"min_lr_ratio": floor}))
    end = 1.0 if schedule == "constant" else 0.1 if floor is None else floor
    assert learning_rate(settings, 12, 20) == pytest.approx((1 + end) / 2 * PEAK)
    assert learning_rate(settings, 20, 20) == pytest.approx(end * PEAK)
    assert end * PEAK <= learning_rate(settings, 19, 20) <= (end + 0.07) * PEAK
    rates = [learning_rate(settings, step, 20) for step in range(4, 20)]
    assert rates == sorted(rates, reverse=True)


def test_by_default_the_rates_are_those_of_earlier_versions_to_the_last_bit() -> None:
    for step in range(4, 20):
        left = (1 + math.cos(math.pi * (step - 4) / 16)) / 2
        assert learning_rate(config(), step, 20) == PEAK * (0.1 + 0.9 * left)


def test_cosine_and_linear_differ_between_their_borders() -> None:
    quarter = [learning_rate(config(schedule=name), 8, 20) for name in ("cosine", "linear")]
    assert quarter == pytest.approx([PEAK * (0.1 + 0.9 * 0.8535534), PEAK * 0.775])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_without_a_warm_up_the_first_step_has_the_peak(schedule: str) -> None:
    assert learning_rate(config(schedule=schedule, warmup_steps=0), 0, 5) == pytest.approx(PEAK)


@pytest.mark.parametrize("total", [1, 3, 4])
def test_a_run_no_longer_than_its_warm_up_only_rises(total: int) -> None:
    rates = [learning_rate(config(), step, total) for step in range(total)]
    assert rates == pytest.approx([PEAK * (step + 1) / 4 for step in range(total)])
