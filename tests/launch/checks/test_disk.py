"""Disks that are full, read-only or out of inodes; real file systems, each small."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.checks.sizes import model_size
from launch.checks.storage import checkpoints_bytes
from launch.config.resolve import resolve
from rundir.config import RunConfig, Sources
from tests.launch.checks.conftest import Machine, Row


def disk_row(machine: Machine, tmp_path: Path, first: str, *args: str, about: str) -> Row:
    """Return the finding about the folder `about`, after `first` has been done."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    rows = machine.rows(*args, first=f"cd '{tmp_path}'\n{first}")["disk"]
    (row,) = [row for row in rows if row["figures"]["folder"] == about]
    return row


def runs_row(machine: Machine, tmp_path: Path, first: str, *args: str) -> Row:
    about = machine.environ["AIRLOCK_RUNS_DIR"]
    return disk_row(machine, tmp_path, first, *args, about=about)


def test_a_disk_with_no_room_for_the_checkpoints_is_an_error(
    machine: Machine, tmp_path: Path
) -> None:
    row = runs_row(machine, tmp_path, "mount -t tmpfs -o size=30m none runs")
    assert not row["ok"]
    assert row["text"].startswith(f"30 MiB are free for {tmp_path}/runs (tmpfs); 2 checkpoints and")
    assert row["text"].endswith("take 37")
    assert "AIRLOCK_RUNS_DIR=/elsewhere" in row["do"]
    assert runs_row(machine, tmp_path, "mount -t tmpfs -o size=60m none runs")["ok"]


def test_a_read_only_disk_is_an_error(machine: Machine, tmp_path: Path) -> None:
    row = runs_row(machine, tmp_path, "mount -t tmpfs -o ro none runs")
    assert not row["ok"]
    assert "is on a read-only filesystem (tmpfs)" in row["text"]


def test_a_disk_out_of_inodes_is_an_error(machine: Machine, tmp_path: Path) -> None:
    fill = "mount -t tmpfs -o nr_inodes=8 none runs; for n in 1 2 3 4 5 6 7; do : >runs/$n; done"
    row = runs_row(machine, tmp_path, fill)
    assert not row["ok"]
    assert "all 8 inodes of its filesystem are in use" in row["text"]


def test_a_full_folder_for_temporary_files_is_an_error(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    fill = "mount -t tmpfs -o size=1m none small; head -c 900K /dev/zero >small/f"
    row = disk_row(
        machine, tmp_path, f"{fill}; export TMPDIR=$PWD/small", about=str(tmp_path / "small")
    )
    assert not row["ok"]
    assert row["text"].endswith("temporary files take 1")


def configured(profile: str, *settings: str) -> tuple[RunConfig, Sources]:
    return resolve(profile, settings, {})


@pytest.mark.parametrize(
    ("profile", "num_parameters", "num_adapters"),
    [
        ("tiny", 821_120, 155_648),
        ("14b", 14_770_033_664, 68_812_800),
        ("32b", 32_763_876_352, 134_217_728),
    ],
)
def test_models_are_counted_to_the_last_parameter(
    profile: str, num_parameters: int, num_adapters: int
) -> None:
    size = model_size(*configured(profile))
    assert size is not None
    assert (size.num_parameters, size.num_adapter_parameters) == (num_parameters, num_adapters)


@pytest.mark.parametrize(
    ("settings", "num_checkpoints"),
    [
        ((), 2),
        (("train.checkpoint_every_steps=0",), 1),
        (("train.keep_checkpoints=1",), 2),
        (("train.checkpoint_every_steps=10",), 3),
        (("train.checkpoint_every_steps=300",), 2),
        (("train.checkpoint_every_steps=10", "train.eval_every_steps=10"), 4),
        (("train.max_steps=0", "train.epochs=1"), 3),
    ],
)
def test_as_many_checkpoints_are_counted_as_there_are_at_once(
    settings: tuple[str, ...], num_checkpoints: int
) -> None:
    of_weights = 821_120 * 4
    expected = num_checkpoints * 3 * of_weights + of_weights
    assert checkpoints_bytes(*configured("tiny", *settings)) == expected


def test_of_another_model_than_the_profiles_nothing_is_said() -> None:
    assert checkpoints_bytes(*configured("32b", "model.path=other/model")) == 0
