"""Healthy runs that are silent for long, with the limits that users have: nobody is warned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.running import (
    COLD,
    SERIAL,
    User,
    as_options,
    ended,
    events_of,
    finish,
    wait_for,
    waiting_in,
)

SCRIPT = Path(__file__).parents[1] / "healthy.py"
_EIGHT = ("--num-gpus", "8", *COLD, *SERIAL)
_WAITS = ("one-evaluates", "one-asks-a-server", "one-saves", "one-saves-at-once")
_OF_EIGHT = ("starts-slowly", "joins-late")
_CASES = (
    *_WAITS,
    *_OF_EIGHT,
    "steps-vary",
    "all-sleep",
    "trains-in-a-loop",
    "trains-compiled",
    "trains-with-transformers",
    "trains-with-accelerate",
)
_LONGEST_S = 1200.0
_WARNINGS = (
    "no progress",
    "taken back",
    "is slower than",
    "watch for hangs has failed",
    "cannot see",
)


def _to_its_end(user: User, *args: str) -> tuple[int, str, list[dict[str, str]]]:
    """Return the exit code of a run, its output, and what the doctor said while ranks waited."""
    told = []
    with ended(user.airlock("run", *args)) as process:
        run = user.run()
        while process.poll() is None:
            wait_for(
                lambda: waiting_in(run) or process.poll() is not None,
                why="the run does not end",
                timeout_s=_LONGEST_S,
            )
            diagnosis = user.diagnosis(run.path)
            if process.poll() is None:
                told.append(diagnosis)
        code, out, err = finish(process)
    return code, out + err, told


def _assert_quiet(run: RunDir, out: str) -> None:
    assert not events_of(run, "error", "hang"), out
    assert not events_of(run, "mark", "hang.over"), out
    for text in _WARNINGS:
        assert text not in out, out


@pytest.mark.long
@pytest.mark.timeout(_LONGEST_S)
@pytest.mark.parametrize("case", _CASES)
def test_a_healthy_script_is_not_warned_of_and_the_doctor_does_not_call_it_hung(
    user: User, case: str
) -> None:
    if case == "trains-compiled" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    args = _EIGHT if case in _OF_EIGHT else ("--num-gpus", "2")
    code, out, diagnosis = _to_its_end(user, *args, str(SCRIPT), case)
    assert code == 0, out
    _assert_quiet(user.run(), out)
    assert {one["cause"] for one in diagnosis} <= {"running"}, diagnosis
    assert case not in _WAITS or "rank 1 has waited " in out


@pytest.mark.long
@pytest.mark.timeout(_LONGEST_S)
def test_a_training_of_ours_with_ranks_alike_is_not_warned_of(user: User) -> None:
    steps = as_options("train.max_steps=120", "train.log_every_steps=5")
    code, out, diagnosis = _to_its_end(user, "tiny", "--num-gpus", "2", *steps)
    assert code == 0, out
    _assert_quiet(user.run(), out)
    assert {one["cause"] for one in diagnosis} <= {"running"}, diagnosis
