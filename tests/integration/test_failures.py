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
    User,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    processes_of,
    rank_pids,
    wait_for,
)
from tests.scripts import script


@pytest.mark.sample
def test_a_rank_killed_in_training_ends_the_run_with_its_rank_and_signal(user: User) -> None:
    with user.training(*ENDLESS) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)  # torch alone would wait 30 s for the others
    assert code == 10
    assert "rank 1 killed by SIGKILL" in out
    status = read_status(run)
    assert status["phase"] == "failed"
    assert status["error"] == "rank 1: killed by SIGKILL"
    assert status["exit_code"] == 10
    assert_nothing_left(run)


def test_a_rank_killed_inside_the_gate_ends_the_run_and_frees_the_gate(user: User) -> None:
    with ended(user.airlock(*ENDLESS, *SERIAL, *COLD)) as process:
        run = user.run()
        wait_for(lambda: events_of(run, "start", "lock.hold", rank=0), why="no rank at the gate")
        os.kill(rank_pids(run)[0], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 10
    assert "rank 0 killed by SIGKILL" in out
    assert_nothing_left(run)
    user.output_of("run", "--num-gpus", "1", *SERIAL, script(user.folder, "pass"))


def test_a_launcher_killed_while_it_prepares_leaves_nothing(user: User) -> None:
    # With a cache of its own, so that the model has to be made.
    with ended(
        user.airlock(*ENDLESS, env={"AIRLOCK_CACHE_DIR": str(user.folder / "cache")})
    ) as process:
        run = user.run()
        wait_for(lambda: processes_of(run), why="no child was started")
        process.kill()
        process.wait()
        assert_nothing_left(run)


@pytest.mark.parametrize(
    ("start", "failing_rank"),
    [
        ("warm", 1),
        pytest.param("cold", 0, marks=pytest.mark.long),
    ],
)
def test_the_traceback_of_whichever_rank_fails_is_the_last_thing_on_the_screen(
    user: User, start: str, failing_rank: int
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
    env = user.hooked("train.step.loop", body)
    out = user.output_of(*SHORT, "--set", f"launch.start={start}", env=env, code=10)
    assert f"rank {failing_rank} raised ZeroDivisionError" in out
    assert out.rstrip().splitlines()[-1] == "ZeroDivisionError: a mistake in the loop"
    assert "Traceback (most recent call last)" in out
    run = user.run()
    assert [event["start"] for event in events_of(run, "mark", "start")] == [start]
    assert "Traceback" in run.rank_log(failing_rank, 0).read_text()
    assert_nothing_left(run)


@pytest.mark.long
def test_a_survivor_that_cannot_be_ended_by_sigterm_holds_nothing_up_when_another_was_killed_by_one(
    user: User,
) -> None:
    with user.training(*ENDLESS) as (process, run):
        os.kill(rank_pids(run)[0], signal.SIGSTOP)
        os.kill(rank_pids(run)[1], signal.SIGTERM)  # which the agent also uses to end survivors
        code, out, _ = finish(process, timeout_s=25)  # torch's agent alone would take 30 s
    assert code == 10
    assert "rank 1 killed by SIGTERM" in out
    assert_nothing_left(run)


@pytest.mark.long
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_rank_that_ends_with_0_before_its_time_ends_the_run_and_is_named(
    user: User, start: str
) -> None:
    body = """
meet = module.meet
module.meet = lambda *args: os._exit(0) if os.environ["RANK"] == "1" else meet(*args)
"""
    env = user.hooked("ranks.group", body)
    out = user.output_of(*ENDLESS, "--set", f"launch.start={start}", env=env, code=10, timeout_s=60)
    assert "rank 1 ended before the training did" in out
    assert_nothing_left(user.run())


@pytest.mark.long
def test_what_the_calling_shell_left_us_is_not_ended_with_the_run(user: User) -> None:
    log = user.folder / "run.log"
    script = f"sleep 1000 & echo $! > sidecar; exec > >(tee {log}) 2>&1; exec "
    command = script + f'"{sys.executable}" -P -m launch {" ".join(SHORT)}'
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=user.folder,
        env=user.environ,
        check=False,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    sidecar = int((user.folder / "sidecar").read_text())
    try:
        assert process.returncode == 0
        assert Path(f"/proc/{sidecar}").exists()
        wait_for(lambda: "done in" in log.read_text(), why="tee was ended before the summary")
    finally:
        os.kill(sidecar, signal.SIGKILL)
