"""Steps and learning rates at the boundaries, where off-by-one errors live."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rundir.config import RunConfig, TrainConfig
from train.batches.course import course_of
from train.update.optimizer import learning_rate

PEAK = 1e-3


def config(**settings: Any) -> TrainConfig:
    return replace(TrainConfig(learning_rate=PEAK, warmup_steps=4), **settings)


@pytest.mark.parametrize(
    ("settings", "num_samples", "steps"),
    [
        ({"max_steps": 7, "epochs": 3.0}, 1000, 7),
        ({"epochs": 1.0, "global_batch_size": 10}, 100, 10),
        ({"epochs": 1.0, "global_batch_size": 10}, 101, 11),
        ({"epochs": 2.5, "global_batch_size": 10}, 100, 25),
        ({"epochs": 0.25, "global_batch_size": 64}, 100, 1),
        ({"epochs": 0.0}, 100, 1),
        ({"epochs": 3.0, "global_batch_size": 64}, 5, 1),
    ],
)
def test_the_steps_are_those_asked_for_or_what_the_epochs_come_to(
    settings: dict[str, Any], num_samples: int, steps: int
) -> None:
    run = RunConfig(profile="test", train=config(**settings))
    assert course_of(run, num_samples).num_steps == steps


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rate_rises_evenly_to_its_peak_and_reaches_it_with_the_last_warm_up_step(
    schedule: str,
) -> None:
    rates = [learning_rate(config(schedule=schedule), step, 20) for step in range(5)]
    assert rates == pytest.approx([PEAK / 4, PEAK / 2, PEAK * 3 / 4, PEAK, PEAK])


@pytest.mark.parametrize(
    ("schedule", "half_way", "end"),
    [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1.0, 1.0)],
)
def test_the_rate_falls_to_a_tenth(schedule: str, half_way: float, end: float) -> None:
    settings = config(schedule=schedule)
    assert learning_rate(settings, 12, 20) == pytest.approx(half_way * PEAK)
    assert learning_rate(settings, 20, 20) == pytest.approx(end * PEAK)
    assert end * PEAK <= learning_rate(settings, 19, 20) <= (end + 0.06) * PEAK


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_the_rate_falls_to_the_floor_that_is_set(schedule: str, floor: float) -> None:
    settings = config(schedule=schedule, min_lr_ratio=floor)
    assert learning_rate(settings, 12, 20) == pytest.approx((1 + floor) / 2 * PEAK)
    assert learning_rate(settings, 20, 20) == pytest.approx(floor * PEAK)


def test_by_default_the_rates_are_those_of_earlier_versions_to_the_last_bit() -> None:
    for step in range(4, 20):
        left = (1 + math.cos(math.pi * (step - 4) / 16)) / 2
        assert learning_rate(config(), step, 20) == PEAK * (0.1 + 0.9 * left)


def test_a_constant_rate_has_no_floor() -> None:
    settings = config(schedule="constant", min_lr_ratio=0.5)
    assert learning_rate(settings, 19, 20) == PEAK


def test_cosine_and_linear_differ_between_their_borders() -> None:
    quarter = [learning_rate(config(schedule=name), 8, 20) for name in ("cosine", "linear")]
    assert quarter == pytest.approx([PEAK * (0.1 + 0.9 * 0.8535534), PEAK * 0.775])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_after_the_warm_up_the_rate_never_rises(schedule: str) -> None:
    rates = [learning_rate(config(schedule=schedule), step, 20) for step in range(4, 20)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_without_a_warm_up_the_first_step_has_the_peak(schedule: str) -> None:
    assert learning_rate(config(schedule=schedule, warmup_steps=0), 0, 5) == pytest.approx(PEAK)


@pytest.mark.parametrize("total", [1, 3, 4])
def test_a_run_no_longer_than_its_warm_up_only_rises(total: int) -> None:
    rates = [learning_rate(config(), step, total) for step in range(total)]
    assert rates == pytest.approx([PEAK * (step + 1) / 4 for step in range(total)])


def test_a_rate_of_zero_stays_zero() -> None:
    assert {learning_rate(config(learning_rate=0.0), step, 9) for step in range(9)} == {0.0}
