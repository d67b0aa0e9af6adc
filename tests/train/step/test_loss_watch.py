"""The rule that tells a bad loss, on made curves: jumps are found, and healthy noise is not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest

from train.step.loss_watch import FEWEST, LossWatch

NUM_STEPS = 600
Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "even": lambda draw: 1 + 0.05 * draw.gauss(0, 1),
    "with a long tail": lambda draw: math.exp(0.5 * draw.gauss(0, 1)),
    "hardly any": lambda draw: 1 + 1e-5 * draw.random(),
    "two kinds of data": lambda draw: draw.choice((0.3, 1.0)) * (1 + 0.1 * draw.gauss(0, 1)),
}


def curve(noise: Noise, seed: int) -> list[float]:
    """Return losses that fall from 11 to 1, or to nearly nothing."""
    draw = random.Random(seed)
    least = draw.choice((1.0, 0.01))
    return [(least + 10 * math.exp(-step / 60)) * noise(draw) for step in range(NUM_STEPS)]


def found_in(losses: list[float], watch: LossWatch | None = None) -> list[int]:
    watch, found = watch or LossWatch(), []
    for step, loss in enumerate(losses, 1):
        bad = watch.judge(step, loss)
        found += [step] if bad else []
        watch.remember(loss, is_bad=bad is not None)
    return found


@pytest.mark.runs
@pytest.mark.parametrize("name", NOISES)
def test_nothing_is_found_in_twenty_healthy_curves(name: str) -> None:
    for seed in range(20):
        assert found_in(curve(NOISES[name], seed)) == []


@pytest.mark.parametrize("name", NOISES)
def test_a_jump_is_found_at_its_step_and_no_other(name: str) -> None:
    losses = curve(NOISES[name], 3)
    losses[400] = 200.0
    assert found_in(losses) == [401]


def test_a_jump_to_twice_the_loss_is_found_where_losses_hardly_vary() -> None:
    losses = [1.2] * 100 + [2.4]
    assert found_in(losses) == [101]


def test_no_number_is_found_at_any_step_and_no_jump_before_there_is_something_to_compare() -> None:
    assert found_in([math.nan, 1.0, math.inf]) == [1, 3]
    num = FEWEST + 8  # the first rise is above eight losses
    assert found_in([1.0] * (num - 1) + [50.0]) == []
    assert found_in([1.0] * num + [50.0]) == [num + 1]


def test_a_jump_is_found_while_the_loss_still_falls() -> None:
    losses = curve(NOISES["even"], 5)
    losses[44] = 2 * losses[44] + 3
    assert found_in(losses) == [45]


def test_losses_that_stay_high_are_told_once_and_become_usual() -> None:
    watch = LossWatch()
    for step in range(100):
        watch.remember(1.0 + step % 3 / 10)
    told = 0
    for step in range(100, 400):
        bad = watch.judge(step, 5.0)
        told += bool(bad and watch.is_new(bad))
        watch.remember(5.0, is_bad=bad is not None)
    assert told == 1
    assert watch.judge(400, 5.0) is None


def test_a_watch_that_is_saved_and_restored_judges_alike() -> None:
    losses = curve(NOISES["even"], 1)
    first, second = LossWatch(), LossWatch()
    found_in(losses[:500], first)
    second.restore(json.loads(json.dumps(first.state())))
    assert first.judge(501, 9.0) == second.judge(501, 9.0)
    assert first.state() == second.state()


def of_rows(draw: random.Random, num_rows: int) -> float:
    """Return the loss of a step of so many rows, of which some are hard."""
    return sum(math.exp(0.5 * draw.gauss(0, 1)) for _ in range(num_rows)) / num_rows


@pytest.mark.parametrize("seed", range(20))
def test_a_last_step_of_one_row_is_no_jump_and_neither_are_steps_of_another_batch_size(
    seed: int,
) -> None:
    draw = random.Random(seed)
    watch = LossWatch()
    assert found_in([of_rows(draw, 64) for _ in range(200)], watch) == []
    state = json.loads(json.dumps(watch.state()))
    rows = [of_rows(draw, 1) for _ in range(1000)]
    assert any(watch.judge(201, loss) for loss in rows)  # they would be, in steps of 64
    assert not any(watch.judge(201, loss, math.sqrt(64)) for loss in rows)
    assert watch.judge(201, 30.0, math.sqrt(64)) is not None
    resumed = LossWatch()
    resumed.restore(state, math.sqrt(64))
    assert found_in(rows, resumed) == []
