"""Ranks, agent and launcher are killed for real: the run ends, says who, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rundir.status import read_status
from tests.running import (
    COLD,
    ENDLESS,
    SERIAL,
    SHORT,
    Start,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    processes_of,
    rank_pids,
    run_folder,
    training,
    wait_for,
)


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        pytest.param(0, signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(1, signal.SIGKILL, marks=pytest.mark.sample),
        (1, signal.SIGTERM),  # which the agent also uses to end survivors
    ],
)
def test_a_rank_killed_in_training_ends_the_run_with_its_rank_and_signal(
    airlock: Start, environ: dict[str, str], victim: int, number: signal.Signals
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        os.kill(rank_pids(run)[victim], number)
        code, out, _ = finish(process, timeout_s=25)  # torch alone would wait 30 s for the others
    assert code == 10
    assert f"rank {victim} killed by {number.name}" in out
    status = read_status(run)
    assert status["phase"] == "failed"
    assert status["error"] == f"rank {victim}: killed by {number.name}"
    assert status["exit_code"] == 10
    assert_nothing_left(run)


def test_a_rank_killed_inside_the_gate_ends_the_run_and_frees_the_gate(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*ENDLESS, *SERIAL, *COLD)) as process:
        run = run_folder(environ)
        wait_for(lambda: events_of(run, "start", "lock.hold", rank=0), why="no rank at the gate")
        os.kill(rank_pids(run)[0], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 10
    assert "rank 0 killed by SIGKILL" in out
    assert_nothing_left(run)
    with ended(airlock(*SHORT, *SERIAL)) as process:
        assert finish(process)[0] == 0


def test_a_launcher_killed_while_it_prepares_leaves_nothing(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    # With a cache of its own, so that the model has to be made.
    with ended(airlock(*ENDLESS, env={"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")})) as process:
        run = run_folder(environ)
        wait_for(lambda: processes_of(run), why="no child was started")
        process.kill()
        process.wait()
        assert_nothing_left(run)


@pytest.mark.parametrize(
    ("start", "failing_rank"),
    [
        ("warm", 1),
        pytest.param("warm", 0, marks=pytest.mark.long),
        pytest.param("cold", 1, marks=pytest.mark.long),
        pytest.param("cold", 0, marks=pytest.mark.long),
    ],
)
def test_the_traceback_of_whichever_rank_fails_is_the_last_thing_on_the_screen(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str, failing_rank: int
) -> None:
    # In the middle of a step: the other rank loses its peer in a collective.
    body = f"""
one_step = module.Trainer._one_step
def failing(trainer):
    if trainer._step == 2 and os.environ["RANK"] == "{failing_rank}":
        raise ZeroDivisionError("a mistake in the loop")
    return one_step(trainer)
module.Trainer._one_step = failing
"""
    env = hooked(environ, tmp_path, "train.step.loop", body)
    with ended(airlock(*SHORT, "--set", f"launch.start={start}", env=env)) as process:
        code, out, err = finish(process)
    assert code == 10, err
    assert f"rank {failing_rank} raised ZeroDivisionError" in out
    assert out.rstrip().splitlines()[-1] == "ZeroDivisionError: a mistake in the loop"
    assert "Traceback (most recent call last)" in out
    run = run_folder(environ)
    assert [event["start"] for event in events_of(run, "mark", "start")] == [start]
    assert "Traceback" in run.rank_log(failing_rank, 0).read_text()
    assert_nothing_left(run)


def test_a_survivor_that_cannot_be_ended_by_sigterm_does_not_hold_the_run_up(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        os.kill(rank_pids(run)[0], signal.SIGSTOP)
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)  # torch's agent alone would take 30 s
    assert code == 10
    assert "rank 1 killed by SIGKILL" in out
    assert_nothing_left(run)


@pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_a_rank_that_ends_with_0_before_its_time_ends_the_run_and_is_named(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    body = """
meet = module.meet
module.meet = lambda *args: os._exit(0) if os.environ["RANK"] == "1" else meet(*args)
"""
    env = hooked(environ, tmp_path, "ranks.group", body)
    with ended(airlock(*ENDLESS, "--set", f"launch.start={start}", env=env)) as process:
        code, out, err = finish(process, timeout_s=60)
    assert code == 10, err
    assert "rank 1 ended before the training did" in out
    assert_nothing_left(run_folder(environ))


@pytest.mark.long
def test_what_the_calling_shell_left_us_is_not_ended_with_the_run(
    environ: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    script = f"sleep 1000 & echo $! > sidecar; exec > >(tee {log}) 2>&1; exec "
    command = script + f'"{sys.executable}" -P -m launch {" ".join(SHORT)}'
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environ,
        check=False,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    sidecar = int((tmp_path / "sidecar").read_text())
    try:
        assert process.returncode == 0
        assert Path(f"/proc/{sidecar}").exists()
        wait_for(lambda: "done in" in log.read_text(), why="tee was ended before the summary")
    finally:
        os.kill(sidecar, signal.SIGKILL)


def test_a_loss_that_is_no_number_ends_the_run_and_saves_no_checkpoint(
    airlock: Start, environ: dict[str, str]
) -> None:
    rate = ("--set", "train.learning_rate=1e29", "--set", "train.checkpoint_every_steps=1")
    with ended(airlock(*SHORT, *rate, "--set", "train.warmup_steps=0")) as process:
        code, out, _ = finish(process)
    assert code == 10
    assert "the loss is nan at step" in out or "the loss is inf at step" in out
    assert "train.jsonl:" in out  # the samples of that step
    assert "train.learning_rate" in out
    run = run_folder(environ)
    assert not list(run.model.parent.glob("model"))
    assert_nothing_left(run)
