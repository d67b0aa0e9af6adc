"""`airlock clean`: what goes, what stays and why."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.clean.old_things import entry_of, live, run_of
from tests.running import Start, ended, finish

Clean = Callable[..., dict[str, Any]]
ENTRY = "0123456789abcdef01234567"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def clean(airlock: Start, tmp_path: Path) -> Clean:
    """Carry out `airlock clean ARGS --json` on the test's own runs and cache."""

    def carry_out(*args: str) -> dict[str, Any]:
        env = {"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")}
        with ended(airlock("clean", *args, "--json", env=env)) as process:
            code, out, err = finish(process)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return carry_out


def names(found: dict[str, Any], which: str) -> list[str]:
    return [Path(one["path"]).name for one in found[which]]


def why(found: dict[str, Any], name: str) -> str:
    (reason,) = [one["why"] for one in found["kept"] if Path(one["path"]).name == name]
    return str(reason)


def test_without_yes_it_shows_sizes_and_the_command_and_removes_nothing(
    airlock: Start, runs: Path
) -> None:
    for number in range(2):
        run_of(runs, f"20260901-10000{number}-tiny-000{number}", days=40)
    with ended(airlock("clean", "--older-than", "20d")) as process:
        code, out, _ = finish(process)
    assert code == 0
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
    found = clean("--yes")
    gone = ["20260901-100000-tiny-0000", "20260901-100002-tiny-0002"]
    assert [Path(one["path"]).name for one in found["removed"] if one["kind"] == "run"] == gone
    assert sorted(path.name for path in runs.iterdir()) == [
        "20260901-100001-mine-0001",
        "20261101-100003-tiny-0003",
    ]
    assert why(found, "20260901-100001-mine-0001") == "the last run of 14b"
    assert found["removed"][0]["size_bytes"] > 300 * 1024


def test_the_last_good_model_stays_even_where_a_later_run_has_failed(
    clean: Clean, runs: Path
) -> None:
    good = run_of(runs, "20260901-100000-tiny-0000", days=40)
    failed = run_of(runs, "20260901-100001-tiny-0001", days=39, exit_code=10)
    run_of(runs, "20260901-100002-tiny-0002", days=38, exit_code=10)
    found = clean("--yes")
    assert not failed.path.exists()
    assert "last good model" in why(found, good.run_id)
    assert (good.model / "model.safetensors").is_file()


def test_what_latest_points_to_stays(clean: Clean, runs: Path) -> None:
    run = run_of(runs, "20260901-100000-tiny-0000", days=40)
    run_of(runs, "20260901-100001-tiny-0001", days=39)
    (runs / "latest").symlink_to(run.run_id)
    assert "`latest`" in why(clean("--yes"), run.run_id)


def test_of_the_last_good_run_the_best_checkpoint_stays(clean: Clean, runs: Path) -> None:
    run = run_of(runs, "20260901-100000-tiny-0000", days=40)
    clean("--yes")
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_00000002"]


def test_checkpoints_of_a_run_that_can_be_gone_on_with_stay(clean: Clean, runs: Path) -> None:
    run = run_of(runs, "20260901-100000-tiny-0000", days=40, exit_code=20)
    assert clean("--yes")["removed"] == []
    assert len(list(run.checkpoints.iterdir())) == 2


def test_without_keep_the_last_good_model_and_the_last_checkpoints_stay(
    clean: Clean, runs: Path
) -> None:
    run_of(runs, "20260901-100000-tiny-0000", days=40, exit_code=20)
    good = run_of(runs, "20260901-100001-tiny-0001", days=40)
    broken_off = run_of(runs, "20260901-100002-tiny-0002", days=40, exit_code=20)
    found = clean("--yes", "--keep", "0")
    assert sorted(path.name for path in runs.iterdir()) == [good.run_id, broken_off.run_id]
    assert "to go on from" in why(found, broken_off.run_id)
    assert len(list(broken_off.checkpoints.iterdir())) == 2


def test_a_live_run_stays_and_what_it_goes_on_from(clean: Clean, runs: Path) -> None:
    old = run_of(runs, "20260901-100000-tiny-0000", days=40)
    going_on = run_of(runs, "20260901-100001-tiny-0001", days=40, exit_code=None)
    going_on.command.write_text(f"./start.sh tiny --resume {old.run_id}\n")
    run_of(runs, "20260901-100002-tiny-0002", days=1)
    with live(going_on):
        found = clean("--yes", "--older-than", "0s")
        assert "live" in why(found, going_on.run_id)
        assert why(found, old.run_id) == f"the live run {going_on.run_id} uses it"
        assert len(list(old.checkpoints.iterdir())) == 2
    found = clean("--yes", "--older-than", "20d")
    assert old.run_id in names(found, "removed")


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
    found = clean("--yes", "--older-than", "0s")
    assert "no record of Airlock's" in why(found, mine.name)
    assert "no seal of Airlock's" in why(found, ENTRY)
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
    with live(run):
        found = clean("--yes")
    assert [unused.exists(), used.exists(), young.exists()] == [False, True, True]
    assert why(found, used.name) == f"the live run {run.run_id} uses it"


def test_while_a_run_is_being_prepared_no_prepared_data_go(
    clean: Clean, runs: Path, tmp_path: Path
) -> None:
    entry = entry_of(tmp_path / "cache", ENTRY, days=40)
    run = run_of(runs, "20260901-100000-tiny-0000", days=0, exit_code=None)
    (run.path / "prepared.json").unlink()
    run.status.unlink()
    with live(run):
        found = clean("--yes")
    assert entry.is_dir()
    assert why(found, ENTRY) == f"the live run {run.run_id} is being prepared, and may use it"
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
    found = clean("--inbox", str(folder), "--older-than", "0s", "--yes")
    assert names(found, "removed") == ["job1"]
    assert "last good model" in why(found, "job2")
    assert "one of the last 1" in why(found, "job3")
    assert "not ours" in why(found, "mine")
    assert (folder / "done" / "job1").is_dir()
    assert (models / "current" / "model.safetensors").is_file()


def test_of_an_inbox_the_runs_of_jobs_that_go_on_stay(clean: Clean, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "inbox").mkdir(parents=True)
    (folder / "queue" / "0007-tea").mkdir(parents=True)
    waiting = run_of(folder / "runs", "20260901-100000-0007-tea.1-0000", days=40, exit_code=10)
    over = run_of(folder / "runs", "20260901-100001-0008-rum.1-0001", days=40, exit_code=10)
    run_of(folder / "runs", "20260901-100002-0009-gin.1-0002", days=40)
    found = clean("--inbox", str(folder), "--yes")
    assert why(found, waiting.run_id) == "the job 0007-tea is not over"
    assert not over.path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--older-than", "soon"), "'soon' is no age: 30d"),
        (("--inbox", "."), "is no inbox"),
        (("--keep", "-1"), "-1 is not in the range"),
    ],
)
def test_what_cannot_be_meant_is_said(airlock: Start, words: tuple[str, ...], said: str) -> None:
    with ended(airlock("clean", *words)) as process:
        code, _, err = finish(process)
    assert code == 2
    assert said in err
