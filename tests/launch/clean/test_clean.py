"""`airlock clean`: what goes, what stays and why."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.clean.old_things import entry_of, run_of
from tests.launch.run_folders import owned
from tests.running import Typed

Clean = Callable[..., dict[str, Any]]
ENTRY = "0123456789abcdef01234567"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def clean(typed: Typed, tmp_path: Path) -> Clean:
    """Carry out `airlock clean ARGS --json` on the test's own runs and cache."""

    def carry_out(*args: str) -> dict[str, Any]:
        env = {"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")}
        out = typed.output_of("clean", *args, "--json", env=env)
        report: dict[str, Any] = json.loads(out)
        return report

    return carry_out


def names(report: dict[str, Any], which: str) -> list[str]:
    return [Path(row["path"]).name for row in report[which]]


def why(report: dict[str, Any], name: str) -> str:
    (reason,) = [row["why"] for row in report["kept"] if Path(row["path"]).name == name]
    return str(reason)


def test_without_yes_it_shows_sizes_and_the_command_and_removes_nothing(
    typed: Typed, runs: Path
) -> None:
    for number in range(2):
        run_of(runs, f"20260901-10000{number}-tiny-000{number}", days=40)
    out = typed.output_of("clean", "--older-than", "20d")
    assert "20260901-100000-tiny-0000  (tiny, done)" in out
    assert "0.3 MiB" in out
    assert "40 days" in out
    assert "20260901-100001-tiny-0001: the last run of tiny" in out
    assert "nothing was\n  → ./airlock clean --older-than 20d --keep 1 --yes" in out
    assert len(list(runs.iterdir())) == 2


def test_old_runs_go_but_the_last_of_each_profile_and_younger_ones(
    clean: Clean, runs: Path
) -> None:
    run_of(runs, "20260901-100000-tiny-0000", days=40)
    run_of(runs, "20260901-100001-mine-0001", days=40, profile="14b")
    run_of(runs, "20260901-100002-tiny-0002", days=40)
    run_of(runs, "20261101-100003-tiny-0003", days=3)
    report = clean("--yes")
    gone = ["20260901-100000-tiny-0000", "20260901-100002-tiny-0002"]
    assert [Path(row["path"]).name for row in report["removed"] if row["kind"] == "run"] == gone
    assert sorted(path.name for path in runs.iterdir()) == [
        "20260901-100001-mine-0001",
        "20261101-100003-tiny-0003",
    ]
    assert why(report, "20260901-100001-mine-0001") == "the last run of 14b"
    assert report["removed"][0]["size_bytes"] > 300 * 1024


def test_the_last_good_model_stays_even_where_later_runs_have_failed_and_what_latest_points_to(
    clean: Clean, runs: Path
) -> None:
    good = run_of(runs, "20260901-100000-tiny-0000", days=40)
    failed = run_of(runs, "20260901-100001-tiny-0001", days=39, exit_code=10)
    latest = run_of(runs, "20260901-100002-tiny-0002", days=38, exit_code=10)
    run_of(runs, "20260901-100003-tiny-0003", days=38, exit_code=10)
    (runs / "latest").symlink_to(latest.run_id)
    report = clean("--yes")
    assert not failed.path.exists()
    assert "last good model" in why(report, good.run_id)
    assert (good.model / "model.safetensors").is_file()
    assert "`latest`" in why(report, latest.run_id)


@pytest.mark.parametrize(("exit_code", "kept"), [(0, [2]), (20, [2, 4])])
def test_of_the_last_run_the_best_checkpoint_stays_and_all_where_it_can_be_gone_on_with(
    clean: Clean, runs: Path, exit_code: int, kept: list[int]
) -> None:
    run = run_of(runs, "20260901-100000-tiny-0000", days=40, exit_code=exit_code)
    assert len(clean("--yes")["removed"]) == (len(kept) == 1)
    assert sorted(int(path.name[5:]) for path in run.checkpoints.iterdir()) == kept


def test_without_keep_the_last_good_model_and_the_last_checkpoints_stay(
    clean: Clean, runs: Path
) -> None:
    run_of(runs, "20260901-100000-tiny-0000", days=40, exit_code=20)
    good = run_of(runs, "20260901-100001-tiny-0001", days=40)
    broken_off = run_of(runs, "20260901-100002-tiny-0002", days=40, exit_code=20)
    report = clean("--yes", "--keep", "0")
    assert sorted(path.name for path in runs.iterdir()) == [good.run_id, broken_off.run_id]
    assert "to go on from" in why(report, broken_off.run_id)
    assert len(list(broken_off.checkpoints.iterdir())) == 2


def test_a_live_run_stays_and_what_it_goes_on_from(clean: Clean, runs: Path) -> None:
    old = run_of(runs, "20260901-100000-tiny-0000", days=40)
    going_on = run_of(runs, "20260901-100001-tiny-0001", days=40, exit_code=None)
    going_on.command.write_text(f"./start.sh tiny --resume {old.run_id}\n")
    run_of(runs, "20260901-100002-tiny-0002", days=1)
    with owned(going_on):
        report = clean("--yes", "--older-than", "0s")
        assert "live" in why(report, going_on.run_id)
        assert why(report, old.run_id) == f"the live run {going_on.run_id} uses it"
        assert len(list(old.checkpoints.iterdir())) == 2
    report = clean("--yes", "--older-than", "20d")
    assert old.run_id in names(report, "removed")


def test_what_airlock_did_not_make_stays(clean: Clean, runs: Path, tmp_path: Path) -> None:
    elsewhere = run_of(tmp_path / "elsewhere", "20260801-100000-tiny-0009", days=90)
    mine = runs / "20260901-100000-mine-00ff"  # called as a run is, without a record of one
    mine.mkdir(parents=True)
    (mine / "precious.txt").write_text("mine")
    (runs / "notes").mkdir()
    (runs / "20260901-100000-link-0001").symlink_to(elsewhere.path)
    old = run_of(runs, "20260901-100000-tiny-0000", days=40)
    (old.path / "out").symlink_to(elsewhere.path)
    run_of(runs, "20260901-100001-tiny-0001", days=30)
    unsealed = tmp_path / "cache" / "data" / ENTRY
    unsealed.mkdir(parents=True)
    os.utime(unsealed, (time.time() - 86400,) * 2)
    report = clean("--yes", "--older-than", "0s")
    assert "no record of Airlock's" in why(report, mine.name)
    assert "no seal of Airlock's" in why(report, ENTRY)
    assert not old.path.exists()
    assert (mine / "precious.txt").is_file()
    assert {"notes", "20260901-100000-link-0001"} <= {path.name for path in runs.iterdir()}
    assert (elsewhere.model / "model.safetensors").is_file()


def test_prepared_data_go_that_no_live_run_reads(clean: Clean, runs: Path, tmp_path: Path) -> None:
    unused = entry_of(tmp_path / "cache", ENTRY, days=40)
    used = entry_of(tmp_path / "cache", ENTRY[::-1], days=40)
    young = entry_of(tmp_path / "cache", "f" * 24, days=3)
    run = run_of(runs, "20260901-100000-tiny-0000", days=0, exit_code=None)
    (run.path / "prepared.json").write_text(json.dumps({"path": str(used)}))
    with owned(run):
        report = clean("--yes")
    assert [unused.exists(), used.exists(), young.exists()] == [False, True, True]
    assert why(report, used.name) == f"the live run {run.run_id} uses it"


def test_while_a_run_is_being_prepared_no_prepared_data_go(
    clean: Clean, runs: Path, tmp_path: Path
) -> None:
    entry = entry_of(tmp_path / "cache", ENTRY, days=40)
    run = run_of(runs, "20260901-100000-tiny-0000", days=0, exit_code=None)
    (run.path / "prepared.json").unlink()
    run.status.unlink()
    with owned(run):
        report = clean("--yes")
    assert entry.is_dir()
    assert why(report, ENTRY) == f"the live run {run.run_id} is being prepared, and may use it"
    clean("--yes")
    assert not entry.exists()


def test_of_an_inbox_old_models_go_but_never_the_current_one(clean: Clean, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "inbox").mkdir(parents=True)
    models = folder / "models"
    lines = []
    for job in ("job1", "job2", "job3"):
        (models / job).mkdir(parents=True)
        (models / job / "model.safetensors").write_bytes(bytes(1024))
        lines.append(json.dumps({"job": job, "t": 0.0, "is_current": job != "job3"}))
    (models / "descent.jsonl").write_text("\n".join(lines) + "\n")
    (models / "current").symlink_to("job2")
    (models / "mine").mkdir()
    (models / "sets").mkdir()
    (folder / "done" / "job1").mkdir(parents=True)
    report = clean("--inbox", str(folder), "--older-than", "0s", "--yes")
    assert names(report, "removed") == ["job1"]
    assert "last good model" in why(report, "job2")
    assert "one of the last 1" in why(report, "job3")
    assert "not ours" in why(report, "mine")
    assert (folder / "done" / "job1").is_dir()
    assert (models / "current" / "model.safetensors").is_file()


def test_of_an_inbox_the_runs_of_jobs_that_go_on_stay(clean: Clean, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "inbox").mkdir(parents=True)
    (folder / "queue" / "0007-tea").mkdir(parents=True)
    waiting = run_of(folder / "runs", "20260901-100000-0007-tea.1-0000", days=40, exit_code=10)
    over = run_of(folder / "runs", "20260901-100001-0008-rum.1-0001", days=40, exit_code=10)
    run_of(folder / "runs", "20260901-100002-0009-gin.1-0002", days=40)
    report = clean("--inbox", str(folder), "--yes")
    assert why(report, waiting.run_id) == "the job 0007-tea is not over"
    assert not over.path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--older-than", "soon"), "'soon' is no age: 30d"),
        (("--inbox", "."), "is no inbox"),
        (("--keep", "-1"), "-1 is not in the range"),
    ],
)
def test_what_cannot_be_meant_is_said(typed: Typed, words: tuple[str, ...], said: str) -> None:
    err = typed.error_of("clean", *words)
    assert said in err
