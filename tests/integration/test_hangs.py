"""Hangs: the rank that keeps the others waiting is named, and the run ended; and near misses."""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile
from functools import partial
from pathlib import Path

import psutil
import pytest

from rundir.paths import RunDir
from tests.running import (
    ENDLESS,
    SHORT,
    Start,
    Typed,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    limit_s,
    rank_pids,
    run_folder,
    training,
    wait_for,
)
from tests.scripts import JOIN, script

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
_CALLS_ANOTHER = "module.dist.barrier(group=self.control)"


def _hangs(airlock: Start, environ: dict[str, str], folder: Path, body: str) -> tuple[RunDir, str]:
    """Let `body` make a run hang until it is ended; return the run and its output."""
    env = hooked(environ, folder, "ranks.group", _BEFORE_A_SUM.format(body=body))
    code, out, err = finish(airlock(*ENDLESS, *_SOON, env=env))
    assert code == 12, out + err
    assert err == ""
    run = run_folder(environ)
    assert_nothing_left(run)
    return run, out


def _has_stacks(log: Path) -> bool:
    return "train/step/loop.py" in log.read_text()


def _verdict(typed: Typed, folder: Path) -> dict[str, object]:
    verdict: dict[str, object] = json.loads(typed("doctor", "--json", str(folder))[1])
    return verdict


def test_a_rank_that_does_not_come_to_a_collective_is_named_with_its_line(
    airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    run, out = _hangs(airlock, environ, tmp_path, _SLEEPS)
    (event,) = events_of(run, "error", "hang")
    assert (event["failed_rank"], event["cause"], event["ends"]) == (1, "rank-behind", True)
    assert "airlock: the run hung: rank 1 did not enter all_reduce #" in out
    assert "sitecustomize.py:" in out
    assert " in stuck" in out
    assert "rank 0 waits in all_reduce #" in out
    assert "ranks/group.py:" in out
    verdict = _verdict(typed, run.path)
    assert (verdict["cause"], verdict["rank"]) == ("rank-behind", 1)
    first = verdict["evidence"][0]  # type: ignore[index]
    lines = (tmp_path / first["file"]).read_text().splitlines()
    assert lines[first["line"] - 1].strip() == first["text"]
    assert "sitecustomize.py" in first["text"]
    assert _verdict(typed, run.incident(0)) == verdict
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


def test_a_rank_that_holds_the_gil_is_named_with_the_call_that_does(
    airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    run, out = _hangs(airlock, environ, tmp_path, _HOLDS_THE_GIL)
    assert "airlock: the run hung: rank 1 holds the GIL in C code: it is at " in out
    verdict = _verdict(typed, run.path)
    assert (verdict["cause"], verdict["rank"]) == ("gil-held", 1)
    assert "in stuck" in str(verdict["evidence"])


@pytest.mark.long
def test_a_rank_that_calls_another_collective_than_the_others_is_named(
    airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    run, _ = _hangs(airlock, environ, tmp_path, _CALLS_ANOTHER)
    verdict = _verdict(typed, run.path)
    assert (verdict["cause"], verdict["rank"]) == ("collective-mismatch", 1)
    assert str(verdict["title"]).startswith("Rank 1 called barrier #")


@pytest.mark.long
@pytest.mark.parametrize(("num", "stuck"), [(2, 1), (1, 0)])
def test_a_rank_that_never_comes_to_train_is_named(
    airlock: Start,
    typed: Typed,
    environ: dict[str, str],
    tmp_path: Path,
    num: int,
    stuck: int,
) -> None:
    sleeps = f"""
meet = module.meet
def stuck(*args):
    if os.environ["RANK"] == "{stuck}":
        {_SLEEPS}
    return meet(*args)
module.meet = stuck
"""
    env = hooked(environ, tmp_path, "ranks.group", sleeps)
    settings = ("--set", "launch.hang_timeout_s=2", "--num-gpus", str(num))
    code, out, err = finish(airlock(*ENDLESS, *settings, env=env))
    assert (code, err) == (12, ""), out + err
    run = run_folder(environ)
    assert_nothing_left(run)
    verdict = _verdict(typed, run.path)
    assert verdict["rank"] == stuck
    assert " in stuck" in str(verdict["title"])
    assert "sitecustomize.py" in str(verdict["fix"])


@pytest.mark.long
def test_a_stopped_rank_is_said_to_be_stopped(
    airlock: Start, typed: Typed, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS, *_SOON), environ) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        code, out, err = finish(process)
    assert (code, err) == (12, ""), out + err
    assert "airlock: the run hung: rank 1 was stopped (SIGSTOP)" in out
    assert f"kill -CONT {rank_pids(run)[1]}" in out
    assert_nothing_left(run)
    verdict = _verdict(typed, run.path)
    assert (verdict["cause"], verdict["rank"]) == ("rank-stopped", 1)


@pytest.mark.long
def test_a_run_that_hangs_is_started_again_where_restarts_are_allowed(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    first_only = f"""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            {_SLEEPS}"""
    env = hooked(environ, tmp_path, "ranks.group", _BEFORE_A_SUM.format(body=first_only.strip()))
    code, out, err = finish(airlock(*SHORT, *_SOON, "--max-restarts", "1", env=env))
    assert code == 0, out + err
    assert "rank 1 did not enter all_reduce #" in out
    assert "restart 1 of 1" in out


@pytest.mark.long
def test_one_that_is_only_to_be_warned_of_goes_on_and_ends_by_ctrl_c(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS, *_SOON, "--set", "launch.on_hang=warn"), environ) as (
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
def test_ctrl_c_during_a_hang_ends_the_run_as_ever(airlock: Start, environ: dict[str, str]) -> None:
    never_so_soon = ("--set", "launch.hang_timeout_s=60", "--set", "launch.stop_timeout_s=2")
    with training(airlock(*ENDLESS, *never_so_soon), environ) as (process, run):
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 21, out + err
    assert not events_of(run, "error", "hang")
    assert_nothing_left(run)


def test_a_slow_run_and_one_whose_launcher_was_stopped_are_no_hangs(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    slow = "import time\nstep = module.Trainer._one_step\n"
    slow += "module.Trainer._one_step = lambda self: (time.sleep(2), step(self))[1]"
    env = hooked(environ, tmp_path, "train.step.loop", slow)
    soon_s = max(4, limit_s(2))  # for steps of 2 s, on a machine that may be busy
    soon = ("--set", f"launch.hang_timeout_s={soon_s}")
    with training(airlock(*SHORT, *soon, env=env), environ) as (process, run):
        process.send_signal(signal.SIGSTOP)  # which the ranks tolerate
        time.sleep(soon_s + 2)
        process.send_signal(signal.SIGCONT)
        code, out, err = finish(process)
    assert code == 0, out + err
    assert not events_of(run, "error", "hang")


def test_a_script_that_hangs_is_warned_of_and_left_alone(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    text = f"""{JOIN}
import signal
signal.signal(signal.SIGUSR2, lambda *_: print("mine", flush=True))
if rank == 1:
    import time
    time.sleep(1000)
dist.barrier()
"""
    with ended(airlock("run", *_SOON, script(tmp_path, text))) as process:
        run = run_folder(environ)
        (event,) = wait_for(lambda: events_of(run, "error", "hang"), why="no hang was said")
        assert (event["failed_rank"], event["ends"]) == (1, False)
        assert "my_train.py:" in event["title"]
        assert process.poll() is None
        assert "mine" not in run.rank_log(1, 0).read_text()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        finish(process)


@pytest.mark.parametrize("way", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_every_rank_writes_its_stacks_to_its_log_at_sigusr2(
    airlock: Start, environ: dict[str, str], way: str
) -> None:
    with training(airlock(*ENDLESS, "--set", f"launch.start={way}"), environ) as (process, run):
        for pid in rank_pids(run).values():
            os.kill(pid, signal.SIGUSR2)
        for rank in (0, 1):
            log = run.rank_log(rank, 0)
            wait_for(partial(_has_stacks, log), why="no stacks")
        num = len(events_of(run, "metric", "train"))
        wait_for(lambda: len(events_of(run, "metric", "train")) > num, why="it does not go on")
        assert process.poll() is None
