"""The state of a run: what the exit code, the owner and the status say together."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from monitor.runs.run_rows import NUM_COLORS, name_of, resumed_from, row_of
from rundir.owner import is_owned, take
from rundir.paths import RunDir
from tests.conftest import ROOT
from tests.monitor.serving import make_run

_TAKES = "import sys; from pathlib import Path; from rundir.owner import take; "
_TAKES += "from rundir.paths import RunDir; take(RunDir(Path(sys.argv[1])), 'x'); "
_TAKES += "print('taken', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"exit_code": 0}, "done"),
        ({"exit_code": 20, "phase": "interrupted"}, "stopped"),
        ({"exit_code": 21, "phase": "interrupted"}, "stopped"),
        ({"exit_code": 20, "phase": "interrupted", "preempted": True}, "preempted"),
        ({"exit_code": 10, "phase": "failed"}, "failed"),
        ({"exit_code": 99, "phase": "failed"}, "failed"),
        ({"exit_code": None, "phase": "training"}, "crashed"),
        ({"exit_code": None, "phase": "paused"}, "crashed"),
    ],
)
def test_a_run_without_an_owner_has_ended_as_its_code_says(
    folder: Path, told: dict[str, Any], state: str
) -> None:
    row = row_of(RunDir(make_run(folder, status=told)))
    assert row.state == state
    assert (row.error is not None) == (state == "crashed")
    assert row.ended_t is not None
    assert 0 <= row.color < NUM_COLORS


def test_a_run_is_running_as_long_as_its_owner_lives_and_never_after(folder: Path) -> None:
    run = RunDir(make_run(folder, status={"exit_code": None, "phase": "training"}))
    owner = subprocess.Popen(
        [sys.executable, "-c", _TAKES, str(run.path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"taken\n"
        assert row_of(run).state == "running"
        run.status.write_text('{"exit_code": null, "phase": "paused"}')
        assert row_of(run).state == "paused"
        owner.kill()
    assert row_of(run).state == "crashed"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ranks": 3, "step": "x", "loss": []}', "\x00"])
def test_a_status_that_is_none_makes_a_row_all_the_same(folder: Path, text: str) -> None:
    run = RunDir(make_run(folder))
    run.status.write_text(text)
    assert row_of(run).state == "crashed"


def test_a_run_that_is_being_made_is_not_called_crashed(folder: Path) -> None:
    run = RunDir(folder / "20260101-000000-tiny-0001")
    run.path.mkdir()
    assert row_of(run).state == "running"
    before = time.time() - 60
    os.utime(run.path, (before, before))
    assert row_of(run).state == "crashed"


def test_a_look_at_a_run_whose_owner_is_just_being_written_takes_no_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that found the lock taken by a reader would be taken for dead ever after."""
    run = RunDir(make_run(folder, status={"exit_code": None}))
    run.owner.touch()  # as `take` does, right before it takes the lock

    def never(*_: object) -> None:
        raise AssertionError("the lock was tried")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", never)
        assert is_owned(run)
    take(run, "this test")
    assert is_owned(run)
    killed = RunDir(make_run(folder, "20260101-000000-tiny-0002"))
    killed.owner.touch()
    before = time.time() - 60
    os.utime(killed.owner, (before, before))
    assert not is_owned(killed), "left by a process that was killed right then"


def test_what_a_run_goes_on_from_is_read_from_its_command(folder: Path) -> None:
    run = RunDir(make_run(folder))
    assert resumed_from(run) is None
    for typed in ("--resume /x/runs/20260101-000000-a-0001", "--resume=20260101-000000-a-0001"):
        run.command.write_text(f"./start.sh tiny {typed} --set a=b\n")
        assert resumed_from(run) == "20260101-000000-a-0001"
    run.command.write_text("./start.sh 'no end\n")
    assert resumed_from(run) is None


def test_the_name_is_what_stands_between_time_and_digits() -> None:
    assert name_of("20260101-000000-my-own-name-3f2a") == "my-own-name"
    assert name_of("renamed") == "renamed"
