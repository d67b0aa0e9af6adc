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
from tests.running import (
    ENDLESS,
    SHORT,
    Start,
    Typed,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    rank_pids,
    run_folder,
    training,
    wait_for,
    wait_until_training,
)
from tests.tensorboard_files import scalars


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_stop_in_training_saves_a_checkpoint_that_the_next_run_goes_on_from(
    airlock: Start, environ: dict[str, str], number: signal.Signals
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
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
    with ended(airlock(*again)) as process:
        code, out, err = finish(process)
    assert code == 0, err
    resumed = run_folder(environ)
    assert events_of(resumed, "mark", "train.plan")[0]["first_step"] == step
    steps = [event["step"] for event in events_of(resumed, "metric", "train")]
    assert steps == [step + 1, step + 2]


def test_a_stop_before_training_ends_at_once_and_says_that_nothing_was_saved(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*ENDLESS)) as process:
        run = run_folder(environ)
        wait_for(lambda: events_of(run, "start", "lock.hold"), why="no rank at the gate")
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 21
    assert "nothing was saved" in out
    assert "  # anew" in out
    assert_nothing_left(run)


def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_cannot_answer(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGSTOP)  # it will never reach its next step
        process.send_signal(signal.SIGINT)
        wait_for(lambda: control.is_asked(run, "stop"), why="the stop was not passed on")
        process.send_signal(signal.SIGINT)
        code, _, _ = finish(process, timeout_s=25)
    assert code == 21
    assert_nothing_left(run)


def test_a_stop_that_a_person_types_saves_and_is_not_taken_for_a_schedulers(
    airlock: Start, typed: Typed, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        assert typed("stop", run.run_id)[0] == 0
        code, out, _ = finish(process)
    assert code == 20
    assert "is saved" in out
    assert read_status(run)["preempted"] is False
    assert_nothing_left(run)


@pytest.mark.long
def test_a_hangup_is_no_second_wish_and_nohup_means_what_it_says(
    airlock: Start, environ: dict[str, str]
) -> None:
    command = ["nohup", sys.executable, "-P", "-m", "launch", *ENDLESS]
    nohup = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, text=True)
    with ended(nohup) as process:
        run = run_folder(environ)
        wait_until_training(run)
        process.send_signal(signal.SIGHUP)
        seen = len(events_of(run, "metric", "train"))
        wait_for(lambda: len(events_of(run, "metric", "train")) > seen + 20, why="it has stopped")
        assert not control.is_asked(run, "stop")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 20

    with ended(airlock(*ENDLESS)) as process:
        wait_for(lambda: run_folder(environ).path != run.path, why="no second run")
        run = run_folder(environ)
        wait_until_training(run)
        for _ in range(2):  # the shell and the kernel may both report a closed terminal
            process.send_signal(signal.SIGHUP)
        code, _, err = finish(process)
    assert code == 20, err
    assert complete_checkpoints(run.checkpoints)


def test_a_stop_that_cannot_be_saved_is_a_failure_and_not_reported_as_saved(
    airlock: Start, environ: dict[str, str]
) -> None:
    # From its second step on, rank 0 has no room for a checkpoint: a real limit on file size.
    with training(airlock(*ENDLESS), environ) as (process, run):
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
def test_a_resumed_run_has_the_settings_of_the_run_it_goes_on_from(
    airlock: Start, environ: dict[str, str]
) -> None:
    settings = ("--set", "train.seed=7", "--set", "train.checkpoint_every_steps=2")
    assert finish(airlock(*SHORT, *settings))[0] == 0
    first = run_folder(environ)
    again = ("run", "tiny", "--resume", first.run_id)
    code, _, err = finish(airlock(*again))
    assert code == 2
    assert "has trained 4 steps" in err
    code, _, err = finish(airlock(*again, "--set", "train.max_steps=6"))
    assert code == 0, err
    text = run_folder(environ).config.read_text()
    assert f"seed = 7  # run {first.run_id}" in text
    assert "global_batch_size = 8" in text
    assert "max_steps = 6  # option" in text
    code, _, err = finish(airlock("run", "14b", "--resume", first.run_id))
    assert code == 2
    assert "is of the profile tiny" in err
