"""A clock that is behind what was written before."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from launch.checks import system
from rundir.finding import Finding
from rundir.paths import RunDir
from rundir.status import Status, write_status
from tests.launch.checks.conftest import context


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(folder))
    return folder


def found() -> Finding:
    (finding,) = system.check_clock(context())
    return finding


def said_at(runs: Path, t: float) -> None:
    """Make the latest run write its status at `t`."""
    run = RunDir(runs / "20260101-000000-tiny-abcd")
    run.path.mkdir(exist_ok=True)
    write_status(run, Status(run_id=run.run_id, profile="tiny", updated_t=t))
    (runs / "latest").unlink(missing_ok=True)
    (runs / "latest").symlink_to(run.run_id)


def test_a_clock_that_is_right_is_fine(runs: Path) -> None:
    assert found().level == "ok"
    said_at(runs, time.time() + 10)
    assert found().level == "ok"


def test_a_clock_before_this_programs_own_files_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(Path(system.__file__).parent.parent, clone / "launch")
    monkeypatch.setattr(system, "ROOT", clone)
    newest = time.time() + 2 * 86400
    os.utime(clone / "launch/run/launched.py", (newest, newest))
    finding = found()
    assert finding.level == "warning"
    assert "before this program was written" in finding.warning
    assert "set-ntp" in finding.do


def test_1970_is_a_warning_whatever_the_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "ROOT", tmp_path)  # without any file
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert found().warning.startswith("it says 1970-01-0")


def test_a_run_with_a_word_from_the_future_is_a_warning(runs: Path) -> None:
    said_at(runs, time.time() + 7200)
    finding = found()
    assert finding.level == "warning"
    assert "before the last word of the run 20260101-000000-tiny-abcd" in finding.warning
    said_at(runs, time.time() - 7200)
    assert found().level == "ok"
