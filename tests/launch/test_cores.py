"""Cores are counted by affinity and by the CPU quota of the cgroups, of either version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.cores import cpu_quota
from tests.conftest import ROOT

V1 = {"cpu.cfs_period_us": "100000\n"}


def proc(tmp_path: Path, group: str, root: str, version: int) -> Path:
    """A /proc/PID of a process in `group`, with the hierarchy mounted from `root` on."""
    folder, mount = tmp_path / "proc", tmp_path / "mount"
    folder.mkdir()
    mount.mkdir()
    kind, controllers, number = ("cgroup2", "", 0) if version == 2 else ("cgroup", "cpu,cpuacct", 4)
    options = "rw" if version == 2 else f"rw,{controllers}"
    (folder / "cgroup").write_text(f"9:name=systemd:/x\n{number}:{controllers}:{group}\n")
    (folder / "mountinfo").write_text(
        "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"
        f"32 31 0:29 {root} {mount} rw,relatime shared:9 - {kind} {kind} {options}\n"
    )
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None)])
def test_the_quota_of_version_2_is_read(tmp_path: Path, text: str, cores: float | None) -> None:
    folder = proc(tmp_path, "/a/b", "/", 2)
    write(tmp_path / "mount" / "a" / "b", {"cpu.max": text})
    assert cpu_quota(folder) == cores


@pytest.mark.parametrize(("text", "cores"), [("350000\n", 3.5), ("-1\n", None)])
def test_the_quota_of_version_1_is_read(tmp_path: Path, text: str, cores: float | None) -> None:
    folder = proc(tmp_path, "/a/b", "/", 1)
    write(tmp_path / "mount" / "a" / "b", V1 | {"cpu.cfs_quota_us": text})
    assert cpu_quota(folder) == cores


def test_a_quota_higher_up_counts_when_it_is_less(tmp_path: Path) -> None:
    folder = proc(tmp_path, "/a/b", "/", 2)
    write(tmp_path / "mount" / "a" / "b", {"cpu.max": "400000 100000\n"})
    write(tmp_path / "mount" / "a", {"cpu.max": "200000 100000\n"})
    assert cpu_quota(folder) == 2
    write(tmp_path / "mount" / "a", {"cpu.max": "max 100000\n"})
    assert cpu_quota(folder) == 4


@pytest.mark.parametrize(
    ("group", "root"), [("/docker/1", "/docker/1"), ("/docker/1", "/"), ("/../2", "/")]
)
def test_a_container_that_sees_only_its_own_cgroup_reads_that(
    tmp_path: Path, group: str, root: str
) -> None:
    folder = proc(tmp_path, group, root, 1)
    write(tmp_path / "mount", V1 | {"cpu.cfs_quota_us": "200000\n"})
    assert cpu_quota(folder) == 2


def test_what_cannot_be_read_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    folder = proc(tmp_path, "/a", "/", 2)
    assert cpu_quota(folder) is None
    write(tmp_path / "mount" / "a", {"cpu.max": "\n"})
    assert cpu_quota(folder) is None


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """A real cgroup that may use half a core; only root can make one."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    is_old = (old / "cpu.cfs_quota_us").exists()
    group = (old if is_old else new) / f"airlock-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of our own: {error}")
    try:
        if is_old:
            (group / "cpu.cfs_quota_us").write_text("50000")
        else:
            (group / "cpu.max").write_text("50000 100000")
        yield group
    except OSError as error:
        pytest.skip(f"no CPU quota: {error}")
    finally:
        group.rmdir()


def test_in_a_real_cgroup_with_a_quota_there_is_never_less_than_one_core(half_a_core: Path) -> None:
    counts = (
        "from launch.cores import *; c = usable_cores(); print(c.number, cpu_quota(), c.counted)"
    )
    command = f'echo $$ > {half_a_core}/cgroup.procs && exec "{sys.executable}" -P -c "{counts}"'
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.startswith("1 0.5 ")
    if len(os.sched_getaffinity(0)) > 1:
        assert "quota is 0.5" in done.stdout
