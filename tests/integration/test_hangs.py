"""Hangs: the rank that keeps the others waiting is named, and the run ended; and near misses."""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile

import psutil
import pytest

from rundir.paths import RunDir
from tests.running import (
    ENDLESS,
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    events_of,
    finish,
    limit_s,
    rank_pids,
    wait_for,
)

_SOON = ("--set", "launch.hang_timeout_s=4")
# Before the eighth all-reduce, somewhere within a step, rank 1 does something of its own.
_BEFORE_A_SUM = """
sum_, sums = module.Ranks.sum, []
def stuck(self, values):
    sums.append(1)
    if self.rank == 1 and len(sums) == 8:
        {body}
    return sum_(self, values)
module.Ranks.sum = stuck
"""
_SLEEPS = "import time; time.sleep(1000)"
# It waits for a mutex that it holds itself: a sleep would end at the signal that asks for its
# stack.
_HOLDS_THE_GIL = (
    "import ctypes; mutex, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None); "
    "native.pthread_mutex_lock(mutex); native.pthread_mutex_lock(mutex)"
)


def _hangs(user: User, body: str) -> tuple[RunDir, str]:
    """Let `body` make a run hang until it is ended; return the run and its output."""
    env = user.hooked("ranks.group", _BEFORE_A_SUM.format(body=body))
    code, out, err = user.finish(*ENDLESS, *_SOON, env=env)
    assert code == 12, out + err
    assert err == ""
    run = user.run()
    assert_nothing_left(run)
    return run, out


def test_a_rank_that_does_not_come_to_a_collective_is_named_with_its_line(user: User) -> None:
    run, out = _hangs(user, _SLEEPS)
    (event,) = events_of(run, "error", "hang")
    assert (event["failed_rank"], event["cause"], event["ends"]) == (1, "rank-behind", True)
    assert "airlock: the run hung: rank 1 did not enter all_reduce #" in out
    assert "sitecustomize.py:" in out
    assert " in stuck" in out
    assert "rank 0 waits in all_reduce #" in out
    assert "ranks/group.py:" in out
    verdict = user.diagnosis(run.path)
    assert (verdict["cause"], verdict["rank"]) == ("rank-behind", 1)
    first = verdict["evidence"][0]
    lines = (user.folder / first["file"]).read_text().splitlines()
    assert lines[first["line"] - 1].strip() == first["text"]
    assert "sitecustomize.py" in first["text"]
    assert user.diagnosis(run.incident(0)) == verdict
    (archive,) = run.incidents.glob("*.zip")
    assert out.count(archive.name) == 1
    with zipfile.ZipFile(archive) as packed:
        names = {name.partition("/incident-attempt0/")[2] for name in packed.namelist()}
    assert names >= {
        "verdict.md",
        "hang.json",
        "stacks/rank0.txt",
        "stacks/rank1.txt",
        "flight/rank0.json",
        "flight/rank1.json",
        "logs/rank1.log",
    }


@pytest.mark.long
def test_a_rank_that_holds_the_gil_is_named_with_the_call_that_does(user: User) -> None:
    run, out = _hangs(user, _HOLDS_THE_GIL)
    assert "airlock: the run hung: rank 1 holds the GIL in C code: it is at " in out
    verdict = user.diagnosis(run.path)
    assert (verdict["cause"], verdict["rank"]) == ("gil-held", 1)
    assert "in stuck" in str(verdict["evidence"])


@pytest.mark.long
@pytest.mark.parametrize(("num", "stuck"), [(2, 1), (1, 0)])
def test_a_rank_that_never_comes_to_train_is_named(user: User, num: int, stuck: int) -> None:
    sleeps = f"""
meet = module.meet
def stuck(*args):
    if os.environ["RANK"] == "{stuck}":
        {_SLEEPS}
    return meet(*args)
module.meet = stuck
"""
    env = user.hooked("ranks.group", sleeps)
    settings = ("--set", "launch.hang_timeout_s=2", "--num-gpus", str(num))
    code, out, err = user.finish(*ENDLESS, *settings, env=env)
    assert (code, err) == (12, ""), out + err
    run = user.run()
    assert_nothing_left(run)
    verdict = user.diagnosis(run.path)
    assert verdict["rank"] == stuck
    assert " in stuck" in str(verdict["title"])
    assert "sitecustomize.py" in str(verdict["fix"])


@pytest.mark.long
def test_a_run_that_hangs_is_started_again_where_restarts_are_allowed(user: User) -> None:
    first_only = f"""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            {_SLEEPS}"""
    env = user.hooked("ranks.group", _BEFORE_A_SUM.format(body=first_only.strip()))
    out = user.output_of(*SHORT, *_SOON, "--max-restarts", "1", env=env)
    assert "rank 1 did not enter all_reduce #" in out
    assert "restart 1 of 1" in out


@pytest.mark.long
def test_one_that_is_only_to_be_warned_of_goes_on_and_ends_by_ctrl_c(user: User) -> None:
    with user.training(*ENDLESS, *_SOON, "--set", "launch.on_hang=warn") as (
        process,
        run,
    ):
        rank = psutil.Process(rank_pids(run)[1])
        rank.suspend()
        (event,) = wait_for(lambda: events_of(run, "error", "hang"), why="no hang was said")
        assert event["ends"] is False
        rank.resume()
        num = len(events_of(run, "metric", "train"))
        wait_for(lambda: len(events_of(run, "metric", "train")) > num + 3, why="it does not go on")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 20, out + err
    assert "rank 1 was stopped (SIGSTOP); it is left to go on" in out


@pytest.mark.long
def test_ctrl_c_during_a_hang_ends_the_run_as_ever(user: User) -> None:
    never_so_soon = as_options("launch.hang_timeout_s=60", "launch.stop_timeout_s=2")
    with user.training(*ENDLESS, *never_so_soon) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 21, out + err
    assert not events_of(run, "error", "hang")
    assert_nothing_left(run)


def test_a_slow_run_and_one_whose_launcher_was_stopped_are_no_hangs(user: User) -> None:
    slow = "import time\nstep = module.Trainer._one_step\n"
    slow += "module.Trainer._one_step = lambda self: (time.sleep(2), step(self))[1]"
    env = user.hooked("train.step.loop", slow)
    soon_s = max(4, limit_s(2))  # for steps of 2 s, on a machine that may be busy
    soon = ("--set", f"launch.hang_timeout_s={soon_s}")
    with user.training(*SHORT, *soon, env=env) as (process, run):
        process.send_signal(signal.SIGSTOP)  # which the ranks tolerate
        time.sleep(soon_s + 2)
        process.send_signal(signal.SIGCONT)
        code, out, err = finish(process)
    assert code == 0, out + err
    assert not events_of(run, "error", "hang")


@pytest.mark.long
def test_a_stall_is_told_of_before_the_hang_that_it_becomes(user: User) -> None:
    facts = user.folder / "facts"
    limit = ("--set", "launch.hang_timeout_s=30", "--on-event", f"cat >> {facts}")
    with user.training(*ENDLESS, *limit) as (process, run):
        wait_for(lambda: len(events_of(run, "metric", "train")) > 20, why="no usual step")
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        code, out, err = finish(process)
    assert code == 12, err
    told = [json.loads(line) for line in facts.read_text().splitlines()]
    assert [one["event"] for one in told] == ["stall", "hang", "failure", "end"]
    stall, hang, _, end = told
    assert "for rank 1, which is stopped" in stall["what"]
    assert f"airlock: stalled: {stall['what']}" in out
    assert stall["waited_s"] < hang["still_s"]
    assert (hang["failed_rank"], end["exit_code"]) == (1, 12)
    assert_nothing_left(run)
