"""Tracking alongside real runs: what kills it, and what it dies with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from rundir.paths import RunDir
from tests.running import (
    ENDLESS,
    Start,
    assert_nothing_left,
    events_of,
    finish,
    processes_of,
    training,
    wait_for,
)
from tests.tensorboard_files import scalars


def tracker(run: RunDir) -> psutil.Process:
    """Return the process that tracks `run`, once it has started up."""
    wait_for(lambda: any(run.tensorboard.glob("events.*")), why="nothing is tracked")
    return next(one for one in processes_of(run) if "launch.track" in one.cmdline())


def last_step(run: RunDir) -> int:
    return int(events_of(run, "metric", "train")[-1]["step"])


def test_a_run_goes_on_without_the_tracker_and_its_files_can_be_written_later(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        victim = tracker(run)
        assert os.getsid(victim.pid) == victim.pid  # so no Ctrl-C in the terminal reaches it
        places = {str(path.readlink()) for path in Path(f"/proc/{victim.pid}/fd").iterdir()}
        assert not any(environ["AIRLOCK_GATE_DIR"] in place for place in places)
        assert str(run.agent_log) not in places
        victim.kill()
        step = last_step(run)
        wait_for(lambda: last_step(run) > step + 5, why="it stopped")
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process)
    assert code == 20, out
    assert out.count("TensorBoard: its process was killed by SIGKILL; the training goes on") == 1
    assert_nothing_left(run)
    assert finish(airlock("track", run.run_id))[0] == 0
    shown = [step for step, *_ in scalars(run.tensorboard)["train/loss"]]
    assert shown == [event["step"] for event in events_of(run, "metric", "train")]


def test_when_the_launcher_is_killed_the_tracker_takes_the_rest_and_ends(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        tracker(run)
        process.kill()
        process.communicate()
    assert_nothing_left(run)
    shown = [step for step, *_ in scalars(run.tensorboard)["train/loss"]]
    steps = [event["step"] for event in events_of(run, "metric", "train")]
    assert shown == steps[: len(shown)]
    assert len(steps) - len(shown) <= 2  # including those written while the ranks were being killed
