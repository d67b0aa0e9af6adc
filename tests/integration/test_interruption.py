"""Ctrl-C and SIGTERM: the first saves and ends, the second ends at once; nothing is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import (
    ENDLESS,
    ROTATING,
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    rank_pids,
    wait_for,
    wait_until_training,
)
from tests.tensorboard_files import scalars


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_stop_in_training_saves_a_checkpoint_that_the_next_run_goes_on_from(
    user: User, number: signal.Signals
) -> None:
    with user.training(*ENDLESS) as (process, run):
        process.send_signal(number)
        code, out, err = finish(process)
    assert code == 20, err
    status = read_status(run)
    assert status["phase"] == "interrupted"
    assert status["preempted"] is (number == signal.SIGTERM)
    saved = complete_checkpoints(run.checkpoints)[-1]
    step = int(saved.name.removeprefix("step_"))
    assert f"the checkpoint after step {step} is saved" in out
    assert f"--resume {run.path}" in out or f"--resume runs/{run.run_id}" in out
    assert not run.model.exists()
    shown = [step for step, *_ in scalars(run.tensorboard)["train/loss"]]
    assert shown == list(range(1, step + 1))
    assert_nothing_left(run)

    total = step + 2
    again = (*ENDLESS, "--set", f"train.max_steps={total}", "--resume", run.run_id)
    user.output_of(*again)
    resumed = user.run()
    assert events_of(resumed, "mark", "train.plan")[0]["first_step"] == step
    steps = [event["step"] for event in events_of(resumed, "metric", "train")]
    assert steps == [step + 1, step + 2]


def test_a_stop_before_training_ends_at_once_and_says_that_nothing_was_saved(user: User) -> None:
    with ended(user.airlock(*ENDLESS)) as process:
        run = user.run()
        wait_for(lambda: events_of(run, "start", "lock.hold"), why="no rank at the gate")
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 21
    assert "nothing was saved" in out
    assert "  # anew" in out
    assert_nothing_left(run)


def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_cannot_answer(user: User) -> None:
    with user.training(*ENDLESS) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGSTOP)  # it will never reach its next step
        process.send_signal(signal.SIGINT)
        wait_for(lambda: control.is_asked(run, "stop"), why="the stop was not passed on")
        process.send_signal(signal.SIGINT)
        code, _, _ = finish(process, timeout_s=25)
    assert code == 21
    assert_nothing_left(run)


@pytest.mark.long
def test_a_hangup_is_no_second_wish_and_nohup_means_what_it_says(user: User) -> None:
    command = ["nohup", sys.executable, "-P", "-m", "launch", *ENDLESS]
    nohup = subprocess.Popen(command, env=user.environ, stdout=subprocess.DEVNULL, text=True)
    with ended(nohup) as process:
        run = user.run()
        wait_until_training(run)
        process.send_signal(signal.SIGHUP)
        seen = len(events_of(run, "metric", "train"))
        wait_for(lambda: len(events_of(run, "metric", "train")) > seen + 20, why="it has stopped")
        assert not control.is_asked(run, "stop")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 20

    with ended(user.airlock(*ENDLESS)) as process:
        wait_for(lambda: user.run().path != run.path, why="no second run")
        run = user.run()
        wait_until_training(run)
        for _ in range(2):  # the shell and the kernel may both report a closed terminal
            process.send_signal(signal.SIGHUP)
        code, _, err = finish(process)
    assert code == 20, err
    assert complete_checkpoints(run.checkpoints)


@pytest.mark.long
def test_a_stop_that_cannot_be_saved_is_a_failure_and_not_reported_as_saved(user: User) -> None:
    # From its second step on, rank 0 has no room for a checkpoint: a real limit on file size.
    with user.training(*ENDLESS) as (process, run):
        resource.prlimit(rank_pids(run)[0], resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process)
    assert code == 10
    assert "is saved" not in out
    assert "--resume" not in out
    assert not complete_checkpoints(run.checkpoints)
    assert not list(run.checkpoints.iterdir())
    assert_nothing_left(run)


@pytest.mark.long
def test_a_resumed_run_has_the_settings_of_the_run_it_goes_on_from(user: User) -> None:
    settings = as_options("train.seed=7", "train.checkpoint_every_steps=2")
    assert user.finish(*SHORT, *settings)[0] == 0
    first = user.run()
    again = ("run", "tiny", "--resume", first.run_id)
    err = user.error_of(*again)
    assert "has trained 4 steps" in err
    user.output_of(*again, "--set", "train.max_steps=6")
    text = user.run().config.read_text()
    assert f"seed = 7  # run {first.run_id}" in text
    assert "global_batch_size = 8" in text
    assert "max_steps = 6  # option" in text
    err = user.error_of("run", "14b", "--resume", first.run_id)
    assert "is of the profile tiny" in err


def test_a_live_run_is_not_gone_on_from_and_what_is_advised_works_when_pasted(user: User) -> None:
    with user.training(*ENDLESS, *ROTATING) as (process, run):
        wait_for(lambda: complete_checkpoints(run.checkpoints), why="no checkpoint")
        typed = user.environ | {"AIRLOCK_SCRIPT": str(ROOT / "start.sh")}
        resumed = ("run", "tiny", "--resume", run.run_id, "--set", "train.max_steps=1")
        err = user.error_of(*resumed, code=4, env=typed)
        assert f"run {run.run_id} is still going on" in err
        assert f"process {process.pid} on " in err
        pasted = subprocess.run(
            ["bash", "-c", err.split("→ ")[1]],
            cwd=user.folder,
            env=user.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.wait(30) == 20
    assert f"run {run.run_id} has trained" in pasted.stderr, pasted.stdout + pasted.stderr
    assert read_status(run)["phase"] == "interrupted"
