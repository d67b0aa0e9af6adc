"""Ctrl-C and SIGTERM: the first saves and ends, the second ends at once; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.status import read_status
from tests.running import (
    ENDLESS,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    rank_pids,
    run_folder,
    wait_for,
    wait_until_training,
)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_training_saves_a_checkpoint_that_the_next_run_goes_on_from(
    airlock: Start, environ: dict[str, str], number: signal.Signals
) -> None:
    with ended(airlock(*ENDLESS)) as process:
        run = run_folder(environ)
        wait_until_training(run)
        process.send_signal(number)
        code, out, err = finish(process)
    assert code == 20, err
    assert read_status(run)["phase"] == "interrupted"
    saved = complete_checkpoints(run.checkpoints)[-1]
    step = int(saved.name.removeprefix("step_"))
    assert f"the checkpoint after step {step} is saved" in out
    assert f"--resume {run.path}" in out or f"--resume runs/{run.run_id}" in out
    assert not run.model.exists()
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
    assert_nothing_left(run)


def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_cannot_answer(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*ENDLESS)) as process:
        run = run_folder(environ)
        wait_until_training(run)
        os.kill(rank_pids(run)[1], signal.SIGSTOP)  # it will never come to its next step
        process.send_signal(signal.SIGINT)
        wait_for(lambda: control.is_asked(run, "stop"), why="the stop was not passed on")
        process.send_signal(signal.SIGINT)
        code, _, _ = finish(process, timeout_s=25)
    assert code == 21
    assert_nothing_left(run)


def test_a_stop_file_written_by_anyone_ends_the_run(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*ENDLESS)) as process:
        run = run_folder(environ)
        wait_until_training(run)
        control.ask(run, "stop")
        code, out, _ = finish(process)
    assert code == 20
    assert "is saved" in out
    assert_nothing_left(run)
