"""Removal under bad conditions: killed, two at once, a run that begins, what cannot be removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.clean.item import TRASH, Item, Retention
from launch.clean.old_runs import old_runs
from launch.clean.remove import left_over, remove
from launch.clean.runs_in_use import LiveRuns
from rundir.paths import RunDir
from rundir.seal import use_sealed
from tests.conftest import ROOT
from tests.launch.clean.old_things import entry_of, run_of
from tests.running import SHORT, Start, Typed, User, ended, finish

ALL = ("clean", "--older-than", "0s", "--yes")


def _is_whole(run: RunDir) -> bool:
    return run.owner.is_file() and (run.model / "model.safetensors").is_file()


@pytest.mark.runs
def test_a_kill_leaves_nothing_that_looks_whole_and_the_next_clean_ends_the_work(
    user: User,
) -> None:
    kept = user.folder / "kept"
    for number in range(2):
        run_of(kept, f"20260901-10000{number}-tiny-000{number}", days=40)
    runs = user.folder / "runs"

    def clean(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "tests.launch.clean.cleaning", str(at)],
            cwd=ROOT,
            env=user.environ | {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )

    def put_back() -> None:
        shutil.rmtree(runs, ignore_errors=True)
        shutil.copytree(kept, runs)

    put_back()
    whole = clean(0)
    num_changes = int(whole.stdout)
    assert num_changes > 10
    for at in range(1, num_changes + 1, 2):
        put_back()
        assert clean(at).returncode == -signal.SIGKILL
        first, second = (RunDir(runs / path.name) for path in sorted(kept.iterdir()))
        assert not first.path.exists() or _is_whole(first)
        assert _is_whole(second)
        for checkpoint in second.checkpoints.glob("step_*"):
            assert len(list(checkpoint.iterdir())) == 3
        assert clean(0).returncode == 0
        assert [path.name for path in runs.iterdir()] == [second.run_id]
        assert [path.name for path in second.checkpoints.iterdir()] == ["step_00000002"]


def test_two_at_once_remove_everything_once(airlock: Start, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(5):
        run_of(runs, f"20260901-10000{number}-tiny-000{number}", days=40)
    with ended(airlock(*ALL)) as one, ended(airlock(*ALL)) as other:
        ends = [finish(one), finish(other)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert [path.name for path in runs.iterdir()] == ["20260901-100004-tiny-0004"]


def test_what_another_clean_removes_while_this_one_looks_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for number in range(2):
        run_of(runs, f"20260901-10000{number}-tiny-000{number}", days=40)
    trash = runs / f"{TRASH}1"
    trash.mkdir()
    lstat = Path.lstat

    def removed_before(path: Path) -> os.stat_result:
        if path in (trash, runs / "20260901-100000-tiny-0000"):
            shutil.rmtree(path, ignore_errors=True)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", removed_before)
    retention = Retention(older_than="0s", older_than_s=0.0, keep=0)
    assert list(left_over([runs])) == []
    live = LiveRuns({runs}, [])
    listed = [entry.path for entry in old_runs(runs, retention, live)]
    assert all(path.is_relative_to(runs / "20260901-100001-tiny-0001") for path in listed)


def test_data_that_a_run_begins_to_use_meanwhile_are_put_back(tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "0123456789abcdef01234567", days=40)
    seen_ns = folder.stat().st_mtime_ns
    looks: list[Path] = []

    def used(at: Path) -> str:
        if not looks:  # after the first look, before the rename
            looks.append(at)
            assert at == folder
            assert use_sealed(folder)
            return ""
        return "a run has begun to use it" if at.stat().st_mtime_ns != seen_ns else ""

    item = Item(kind="cache", path=folder, size_bytes=1, age_s=1, what="", used=used)
    assert remove(item) == "a run has begun to use it"
    assert use_sealed(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_file_that_cannot_be_removed_is_named_and_the_rest_goes(user: User) -> None:
    runs = user.folder / "runs"
    stuck, gone, _ = (
        run_of(runs, f"20260901-10000{number}-tiny-000{number}", days=40) for number in range(3)
    )
    with _mounted_in(stuck.path):
        code, out, err = user.typed(*ALL)
        (trash,) = runs.glob(".airlock-trash.*")
        assert code == 4
        assert f"{stuck.path} could not be removed: {trash}/mounted: Device or resource busy" in err
        assert [path.name for path in trash.iterdir()] == ["mounted"]
        assert not gone.path.exists()
        assert "removed: 2 things" in out
        report = json.loads(user.typed("clean", "--json")[1])
        assert report["could_be_removed"][0]["kind"] == "left over"
    assert user.typed(*ALL)[0] == 0
    assert not trash.exists()


@contextlib.contextmanager
def _mounted_in(run: Path) -> Iterator[None]:
    """Mount a file system in a run's folder, which cannot be removed then; this needs root."""
    folder = run / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted")
    try:
        yield
    finally:
        (at,) = [path for path in (folder, *run.parent.glob(".*/mounted")) if path.exists()]
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def test_a_full_disk_is_no_reason_not_to_clean(typed: Typed, small_disk: Path) -> None:
    for number in range(2):
        run_of(small_disk, f"20260901-10000{number}-tiny-000{number}", days=40)
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    assert shutil.disk_usage(small_disk).free == 0
    typed.output_of(*ALL, env={"AIRLOCK_RUNS_DIR": str(small_disk)})
    assert shutil.disk_usage(small_disk).free > 300 * 1024


@pytest.mark.long
def test_a_run_that_starts_while_everything_is_cleaned_comes_to_its_end(user: User) -> None:
    own = {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")}
    for _ in range(2):  # the second finds its model and its data in the cache, or makes them again
        with ended(user.airlock(*SHORT, env=own)) as process:
            while process.poll() is None:
                with ended(user.airlock(*ALL, env=own)) as cleaning:
                    code, _, err = finish(cleaning)
                assert code == 0, err
            code, out, err = finish(process)
        assert code == 0, out + err
        assert (user.run().model / "config.json").is_file()
