"""Pause, resume, save, evaluate, set and trace, on real runs of two ranks and of one process."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.config_file import read_config
from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import (
    ENDLESS,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    output_of,
    rank_pids,
    run_folder,
    wait_for,
)

STEPS = 8
LONG_S = 500.0  # a run begins late on a machine with other work
WHOLE = (
    *ENDLESS,
    *as_options(
        f"train.max_steps={STEPS}",
        "data.max_eval_samples=4",
        f"data.eval_path={ROOT / 'examples/tiny/heldout.jsonl'}",
        "launch.threads_per_rank=1",
    ),
)


def phase_of(run: RunDir) -> str:
    """Return the phase in the run's status, "" without one."""
    try:
        return str(read_status(run)["phase"])
    except (OSError, ValueError, KeyError):
        return ""


def curve(run: RunDir) -> list[tuple[int, float, float]]:
    """Return step, loss and gradient norm of each step, in the order of the steps."""
    events = events_of(run, "metric", "train")
    return sorted({(event["step"], event["loss"], event["grad_norm"]) for event in events})


def until_paused(run: RunDir) -> None:
    wait_for(lambda: phase_of(run) == "paused", why="it was not paused", timeout_s=LONG_S)


def pulses(run: RunDir) -> bytes:
    return b"".join(run.pulse(rank).read_bytes() for rank in (0, 1))


@pytest.mark.timeout(900)
def test_a_run_that_is_controlled_has_bitwise_the_losses_of_one_that_is_not(user: User) -> None:
    user.output_of(*WHOLE, timeout_s=LONG_S)
    undisturbed = user.run()

    with ended(user.airlock(*WHOLE)) as process:
        wait_for(lambda: user.run().path != undisturbed.path, why="no second run")
        run = user.run()
        control.ask(run, "pause")  # while model and data are prepared
        until_paused(run)
        assert "is paused already" in user.output_of("pause", run.run_id)
        seen = pulses(run)
        wait_for(lambda: pulses(run) != seen, why="paused ranks do not show that they live")
        asked = [
            user.airlock("save", run.run_id),
            user.airlock("save", run.run_id),
            user.airlock("evaluate", "--live", run.run_id),
            user.airlock("set", run.run_id, "train.checkpoint_every_steps=4"),
        ]
        for one in asked:  # all at once, and while it is paused
            out = output_of(one)
            assert run.run_id in out
        assert complete_checkpoints(run.checkpoints)
        assert "steps 2 to 3" in user.output_of("trace", run.run_id, "--steps", "2")
        pids = rank_pids(run)
        assert "goes on after step 1" in user.output_of("resume", run.run_id)
        assert rank_pids(run) == pids
        code, out, err = finish(process, timeout_s=LONG_S)
    assert code == 0, err
    assert curve(run) == curve(undisturbed)
    assert [point[0] for point in curve(run)] == list(range(1, STEPS + 1))
    assert "airlock: paused after step 1" in out
    assert f"airlock resume {run.run_id}" in out
    assert "longest operations of rank 0" in out
    answers = {one["request"]: one["done"] for one in events_of(run, "mark", "control")}
    assert answers == dict.fromkeys(("pause", "save", "evaluate", "set", "profile", "resume"), True)
    assert read_config(run.config).train.checkpoint_every_steps == 4
    saved = {int(path.name.removeprefix("step_")) for path in complete_checkpoints(run.checkpoints)}
    assert {4, 8} <= saved
    for rank in (0, 1):
        with gzip.open(run.traces / f"step_00000002-rank{rank}.json.gz") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        assert {"airlock step 2", "airlock step 3", "aten::mm"} <= names
        assert (run.traces / f"step_00000002-rank{rank}.txt").read_text().count("\n") == 11
    assert not list(run.control.iterdir())
    assert_nothing_left(run)


@pytest.mark.parametrize("victim", [pytest.param("rank", marks=pytest.mark.long), "launcher"])
def test_a_paused_run_whose_rank_or_launcher_is_killed_ends_as_always(
    user: User, victim: str
) -> None:
    with user.training(*ENDLESS) as (process, run):
        control.ask(run, "pause")
        until_paused(run)
        os.kill(rank_pids(run)[0], signal.SIGSTOP)  # who takes requests
        asked = user.airlock("save", run.run_id)
        wait_for(lambda: any(run.control.glob("save*")), why="nothing is asked for")
        os.kill(rank_pids(run)[1] if victim == "rank" else process.pid, signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=LONG_S)
        assert code == (10 if victim == "rank" else -signal.SIGKILL)
        if victim == "rank":
            assert "rank 1" in out.lower()
        assert_nothing_left(run)
        for typed in (asked, user.airlock("resume", run.run_id)):
            code, _, err = finish(typed)
            assert code == 2
            assert ("is over: failed" if victim == "rank" else "is dead") in err


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ranks_that_are_killed_while_paused_and_started_again_pause_again(user: User) -> None:
    with ended(user.airlock(*WHOLE, "--max-restarts", "1")) as process:
        run = user.run()
        control.ask(run, "pause")
        until_paused(run)
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        wait_for(lambda: events_of(run, "mark", "restart"), why="no restart", timeout_s=LONG_S)
        user.output_of("pause", run.run_id, timeout_s=LONG_S)
        until_paused(run)
        user.output_of("resume", run.run_id)
        code, _, err = finish(process, timeout_s=LONG_S)
    assert code == 0, err
    assert {point[0] for point in curve(run)} == set(range(1, STEPS + 1))
    assert_nothing_left(run)


@pytest.mark.long
def test_a_pause_is_no_hang_and_a_hang_after_it_is_found(user: User) -> None:
    limit_s = 8
    limits = ("--set", f"launch.hang_timeout_s={limit_s}")
    with user.training(*ENDLESS, *limits) as (process, run):
        control.ask(run, "pause")
        until_paused(run)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3 * limit_s)
        assert not events_of(run, "error", "hang")
        control.withdraw(run, "pause")
        wait_for(lambda: phase_of(run) == "training", why="it does not go on")
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        code, _, err = finish(process, timeout_s=LONG_S)
    assert code == 12, err
    assert_nothing_left(run)


@pytest.mark.long
def test_a_plain_run_is_paused_and_goes_on(environ: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "train", *WHOLE[1:]]
    admit = command.index("launch.admit=open")
    del command[admit - 1 : admit + 1]
    plain = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended(plain):
        run = run_folder(environ)
        wait_for(run.control.is_dir, why="no folder for requests")
        control.ask(run, "pause")
        until_paused(run)
        control.ask(run, "resume")  # by hand, as a file
        code, out, err = finish(plain, timeout_s=LONG_S)
    assert code == 0, err
    assert "airlock: paused after step 1" in out
    assert not list(run.control.iterdir())
