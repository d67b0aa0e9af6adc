"""Early stopping, and steps that were left out: what a resumed run goes on with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks.group import Alone
from rundir.checkpoints import checkpoint_name
from rundir.config import RunConfig
from rundir.paths import RunDir
from train.batches.course import Course, course_of
from train.batches.epoch_order import Order
from train.batches.feed import Feed
from train.step.guards import Guards, Patience
from train.step.loss_watch import BadLoss

NUM_ROWS, BATCH = 200, 4


def config_of(batch_size: int) -> RunConfig:
    config = RunConfig(profile="test")
    return replace(config, train=replace(config.train, global_batch_size=batch_size, max_steps=50))


def seen(losses: list[float], most: int = 3) -> Patience:
    patience = Patience(most)
    for number, loss in enumerate(losses, 1):
        patience.seen(10 * number, loss)
    return patience


def test_it_runs_out_after_so_many_evaluations_without_a_better_one() -> None:
    assert not seen([3.0, 2.0, 2.5, 2.1]).is_out
    out = seen([3.0, 2.0, 2.5, 2.1, 2.0])
    assert out.is_out
    assert (out.best_step, out.best_loss) == (20, 2.0)


def test_a_better_one_begins_the_count_anew_and_no_number_is_no_better_one() -> None:
    assert not seen([3.0, 3.1, 3.2, 2.9, 3.0, 3.0]).is_out
    assert seen([3.0, math.nan, math.nan, math.nan]).is_out


def test_it_never_runs_out_if_it_is_off() -> None:
    assert not seen([1.0] * 50, most=0).is_out


def test_a_resumed_run_keeps_count_and_counts_no_evaluation_twice() -> None:
    first, second = seen([3.0, 2.0, 2.5]), Patience(3)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    second.seen(30, 2.5)  # with which a resumed run begins
    assert second.num_since == 1
    second.restore(json.loads(json.dumps(Patience(3).state())))
    assert second.seen(10, 5.0)


@pytest.mark.parametrize(("batch_size", "kept"), [(BATCH, {40, 43}), (8, {40})])
def test_steps_to_come_that_were_left_out_are_so_only_while_they_have_the_same_rows(
    tmp_path: Path, batch_size: int, kept: set[int]
) -> None:
    config = config_of(BATCH)
    run = RunDir(tmp_path / "run")
    guards = guards_of(config, run, course_of(config, NUM_ROWS))
    guards.losses.skipped |= {40, 43}
    checkpoint = run.checkpoints / checkpoint_name(41)
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps({"notes": guards.notes(41)}))
    now = config_of(batch_size)
    course = course_of(now, NUM_ROWS, str(checkpoint))
    resumed = guards_of(now, run, course)
    resumed.restore(checkpoint)
    assert resumed.losses.skipped == kept
    # What this run itself leaves out stays, although it goes back to that checkpoint.
    for step in (44, 45):
        resumed.go_back(checkpoint, BadLoss(step, 9.0))
    assert resumed.losses.skipped == kept | {44, 45}


def guards_of(config: RunConfig, run: RunDir, course: Course) -> Guards:
    samples: Any = range(course.num_rows)
    return Guards(
        config=config,
        run=run,
        ranks=Alone(torch.device("cpu")),
        feed=Feed(samples, config, 0, 1, Order(course)),
        loss=torch.nn.Identity(),
    )
