"""One run whose launcher is killed: what is beside it ends too, and another run can go on from it.

The tests follow each other: the run that goes on comes last.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rundir.checkpoints import complete_checkpoints, step_of
from rundir.paths import RunDir
from tests.integration.test_kill_everything import CHILDREN
from tests.monitor.serving import Server, served
from tests.running import (
    ENDLESS,
    ROTATING,
    User,
    assert_nothing_left,
    events_of,
    monitors_of,
    processes_of,
    wait_for,
)
from tests.tensorboard_files import scalars


class Killed(NamedTuple):
    """The run, and the server of its folder, which has seen it live."""

    run: RunDir
    server: Server
    user: User


@pytest.fixture(scope="module")
def killed(user_of_all: User) -> Iterator[Killed]:
    user, runs = user_of_all, Path(user_of_all.environ["AIRLOCK_RUNS_DIR"])
    runs.mkdir()
    env = user.hooked("ranks.group", CHILDREN)
    watched = user.training(*ENDLESS, *ROTATING, "--monitor", env=env)
    with served(runs, user.environ) as server, watched as (process, run):
        assert server.row(run.run_id)["state"] == "running"
        wait_for(lambda: complete_checkpoints(run.checkpoints), why="no checkpoint")
        wait_for(lambda: any(run.tensorboard.glob("events.*")), why="nothing is tracked")
        assert monitors_of(run)
        assert (user.folder / "children0").exists()
        assert len(processes_of(run)) >= 2 + 2 * 4  # agent, zygote, ranks, their children
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        yield Killed(run, server, user)


def test_it_is_a_crashed_run_at_once(killed: Killed) -> None:
    killed.server.until(killed.run.run_id, "crashed")
    row = killed.server.row(killed.run.run_id)
    assert row["exit_code"] is None
    assert "without a word" in row["error"]


def test_nothing_is_left_not_even_what_the_ranks_have_started_themselves(killed: Killed) -> None:
    assert_nothing_left(killed.run)
    wait_for(lambda: not monitors_of(killed.run), why="the monitor stays", timeout_s=60)


def test_the_tracker_has_taken_the_rest(killed: Killed) -> None:
    shown = [step for step, *_ in scalars(killed.run.tensorboard)["train/loss"]]
    steps = [event["step"] for event in events_of(killed.run, "metric", "train")]
    assert shown == steps[: len(shown)]
    assert len(steps) - len(shown) <= 2  # including those written while the ranks were being killed


def test_it_has_no_owner_any_more(killed: Killed) -> None:
    run = killed.run
    wait_for(lambda: run.run_id not in killed.user.typed("ps")[1], why="it is still listed")
    step = step_of(complete_checkpoints(run.checkpoints)[-1])
    more = ("--resume", run.run_id, "--set", f"train.max_steps={step + 4}")
    killed.user.output_of("run", "tiny", *more)
    assert killed.user.run().path != run.path
