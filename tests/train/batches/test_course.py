"""The rows of each step: each once an epoch, whatever a run is resumed with, and none too many."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rundir.checkpoints import checkpoint_name
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.prepared import PreparedPart
from tests.train.stream.test_stream_order import epoch_of, table_of
from train.batches.course import Course, Draw, course_of
from train.batches.epoch_order import MixedOrder, Order
from train.stream.order import Shuffle, StreamOrder

ROWS = 40


def config_of(*, shuffle_mib: int = 0, **train: Any) -> RunConfig:
    config = RunConfig(profile="test")
    data = replace(config.data, streaming=shuffle_mib > 0, shuffle_mib=shuffle_mib)
    return replace(config, data=data, train=replace(config.train, **train))


def saved(folder: Path, config: RunConfig, course: Course, step: int, *, is_old: bool) -> str:
    """Write what a run's checkpoint after `step` steps says of its rows; return its path."""
    path = folder / "checkpoints" / checkpoint_name(step)
    path.mkdir(parents=True)
    notes = {} if is_old else {"position": asdict(course.position(step))}
    (path / "state.json").write_text(json.dumps({"step": step, "notes": notes}), encoding="utf-8")
    (folder / "config.toml").write_text(config_text(config, {}), encoding="utf-8")
    return str(path)


def taken(course: Course, steps: range) -> list[list[int]]:
    """Return the samples of each of these steps."""
    return [Order(course).step_indices(step) for step in steps]


def flat(steps: list[list[int]]) -> list[int]:
    return [index for step in steps for index in step]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_comes_once_an_epoch_however_often_a_run_is_resumed_with_other_settings(
    tmp_path: Path, seed: int, is_old: bool
) -> None:
    draw = np.random.default_rng(seed)
    found: list[int] = []
    resume_from, step = None, 0
    for number in range(6):
        batch_size, new_seed = int(draw.integers(1, 30)), int(draw.integers(0, 3))
        config = config_of(global_batch_size=batch_size, seed=new_seed, epochs=4.0)
        course = course_of(config, ROWS, resume_from)
        last = min(step + int(draw.integers(1, 4)), course.num_steps)
        last = course.num_steps if number == 5 else last
        found += flat(taken(course, range(step, last)))
        step = last
        # Of an earlier version only the first can be: all its steps had one size.
        old = is_old and number == 0
        resume_from = saved(tmp_path / str(number), config, course, step, is_old=old)
    assert len(found) == 4 * ROWS
    for epoch in range(4):
        assert sorted(found[epoch * ROWS : (epoch + 1) * ROWS]) == list(range(ROWS))


def test_another_seed_counts_from_the_next_epoch_on_and_until_then_nothing_changes(
    tmp_path: Path,
) -> None:
    before, now = (config_of(global_batch_size=8, seed=seed, epochs=3.0) for seed in (0, 1))
    old, new = (flat(taken(course_of(one, ROWS), range(15))) for one in (before, now))
    begun = course_of(before, ROWS)
    course = course_of(now, ROWS, saved(tmp_path / "a", before, begun, 3, is_old=False))
    found = flat(taken(course, range(3, 15)))
    assert found == old[24:ROWS] + new[ROWS:]
    # Back again before that epoch has begun: as if nothing had been.
    back = course_of(before, ROWS, saved(tmp_path / "b", now, course, 4, is_old=False))
    assert back.draws == begun.draws
    # Between two epochs none is under way.
    between = course_of(now, ROWS, saved(tmp_path / "c", before, begun, 5, is_old=False))
    assert between.draws == (Draw(0, 0), Draw(1, 1))
    at_once = course_of(now, ROWS, saved(tmp_path / "d", before, begun, 0, is_old=False))
    assert at_once.draws == (Draw(0, 1),)


@pytest.mark.parametrize("is_old", [False, True])
def test_with_nothing_changed_steps_are_those_of_a_run_that_was_not_resumed(
    tmp_path: Path, is_old: bool
) -> None:
    config = config_of(global_batch_size=7, seed=3, epochs=2.5)
    whole = course_of(config, ROWS)
    for step in range(whole.num_steps):
        checkpoint = saved(tmp_path / str(step), config, whole, step, is_old=is_old)
        course = course_of(config, ROWS, checkpoint)
        assert course.num_steps == whole.num_steps
        rest = range(step, whole.num_steps)
        assert taken(course, rest) == taken(whole, rest)


def test_a_checkpoint_that_does_not_say_where_it_stands_is_an_error(tmp_path: Path) -> None:
    config = config_of(global_batch_size=7)
    checkpoint = saved(tmp_path, config, course_of(config, ROWS), 3, is_old=True)
    (tmp_path / "config.toml").unlink()
    with pytest.raises(UserError, match=r"config\.toml does not say which rows") as raised:
        course_of(config, ROWS, checkpoint)
    assert raised.value.code == ExitCode.DATA
    (Path(checkpoint) / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"state\.json does not say which rows"):
        course_of(config, ROWS, checkpoint)


@pytest.mark.parametrize(
    ("num_rows", "settings", "sizes"),
    [
        (9, {"global_batch_size": 8, "epochs": 1.0}, [8, 1]),
        (65, {"global_batch_size": 64, "epochs": 1.0}, [64, 1]),
        (100, {"global_batch_size": 64, "epochs": 1.0}, [64, 36]),
        (1, {"global_batch_size": 64, "epochs": 1.0}, [1]),
        (16, {"global_batch_size": 8, "epochs": 1.0}, [8, 8]),
        (9, {"global_batch_size": 8, "epochs": 2.0}, [8, 8, 2]),  # filled between epochs
        (100, {"global_batch_size": 8, "epochs": 0.25}, [8, 8, 8, 1]),
        (9, {"global_batch_size": 8, "epochs": 1.5}, [8, 6]),  # round(13.5) is 14
        (100, {"global_batch_size": 10, "epochs": 1.1}, [10] * 11),
        (9, {"global_batch_size": 8, "epochs": 1.0, "max_steps": 3}, [8, 8, 8]),
        (100, {"epochs": 0.25, "global_batch_size": 64}, [25]),
        (5, {"epochs": 3.0, "global_batch_size": 64}, [15]),
        (100, {"epochs": 0.0, "global_batch_size": 64}, [1]),
    ],
)
def test_the_last_step_of_the_epochs_has_the_rows_that_are_left(
    num_rows: int, settings: dict[str, Any], sizes: list[int]
) -> None:
    course = course_of(config_of(**settings), num_rows)
    assert course.num_steps == len(sizes)
    steps = taken(course, range(len(sizes)))
    assert [len(step) for step in steps] == sizes
    if "max_steps" not in settings:
        whole, more = divmod(max(1, round(settings["epochs"] * num_rows)), num_rows)
        times = Counter(flat(steps))
        assert (
            Counter(times[row] for row in range(num_rows))
            == Counter({whole + 1: more, whole: num_rows - more}) - Counter()
        )
        assert taken(course, range(len(sizes), len(sizes) + 2)) == [[], []]


def part(num_samples: int, num_drawn: int) -> PreparedPart:
    return PreparedPart(path="", num_samples=num_samples, num_drawn=num_drawn)


@pytest.mark.parametrize("change_at", range(1, 9))
def test_a_file_of_a_mixture_is_gone_through_in_the_order_in_which_that_was_begun(
    change_at: int,
) -> None:
    parts = [part(5, 5), part(7, 3), part(2, 5)]  # the second's turns span three epochs
    epoch = sum(one.num_drawn for one in parts)

    def drawn(*draws: Draw) -> list[list[int]]:
        order = MixedOrder(parts, Course(num_rows=epoch, batch_size=epoch, draws=draws))
        return [order.step_indices(step) for step in range(21)]

    old, new = drawn(Draw(0, 0)), drawn(Draw(0, 1))
    found = drawn(Draw(0, 0), Draw(change_at, 1))
    assert found[:change_at] == old[:change_at]
    assert found[change_at + 3 :] == new[change_at + 3 :]  # every turn has begun anew by then
    assert found != old
    for first, last in ((0, 5), (5, 12), (12, 14)):
        seen = Counter[int]()
        for step in found:
            seen.update(index for index in step if first <= index < last)
            times = [seen[index] for index in range(first, last)]
            assert max(times) - min(times) <= 1


def test_streamed_rows_are_shuffled_anew_from_an_epoch_on() -> None:
    table = table_of([7] * 30, list(range(30)))
    old, new = Shuffle(0, 0, 4), Shuffle(2, 1, 9)
    both = StreamOrder(table, [old, new])
    before, after = (StreamOrder(table, [replace(one, from_epoch=0)]) for one in (old, new))
    for epoch in (3, 1, 2, 0):  # in any order
        wanted = before if epoch < 2 else after
        assert epoch_of(both, epoch) == epoch_of(wanted, epoch)
    assert epoch_of(before, 2) != epoch_of(after, 2)


def test_with_fewer_rows_than_before_a_run_that_is_forced_goes_on_with_the_next_epoch(
    tmp_path: Path,
) -> None:
    config = config_of(global_batch_size=8, epochs=3.0)
    checkpoint = saved(tmp_path, config, course_of(config, ROWS), 7, is_old=False)
    course = course_of(config, 10, checkpoint)  # 16 rows of the second epoch were used
    assert course.rows(7) == range(20, 28)
    assert course_of(config, 50, checkpoint).rows(7) == range(66, 74)


def test_only_streamed_rows_depend_on_the_window(tmp_path: Path) -> None:
    config = config_of(global_batch_size=8)
    other = replace(config, data=replace(config.data, shuffle_mib=1))
    checkpoint = saved(tmp_path / "a", config, course_of(config, ROWS), 2, is_old=False)
    assert course_of(other, ROWS, checkpoint).draws == (Draw(),)
    streamed, other = config_of(shuffle_mib=16, epochs=2.0), config_of(shuffle_mib=1, epochs=2.0)
    checkpoint = saved(tmp_path / "b", streamed, course_of(streamed, ROWS), 1, is_old=True)
    assert course_of(other, ROWS, checkpoint).draws == (Draw(0, 0, 16), Draw(2, 0, 1))
