"""Cores are counted by affinity and by the cgroups' CPU quota, in both versions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from machine.cores.cores import least_quota
from machine.mounts import Mount
from tests.running import python

V1 = {"cpu.cfs_period_us": "100000\n"}


@dataclass
class Hierarchy:
    """A cgroup hierarchy below `point`, mounted from `root` on, as a process in `group` sees it."""

    point: Path
    group: str
    root: str
    version: int

    def quota(self) -> float | None:
        controllers = "" if self.version == 2 else "cpu,cpuacct"
        kind, options = ("cgroup2", "rw") if self.version == 2 else ("cgroup", f"rw,{controllers}")
        mounted = [
            Mount(root="/", point=Path("/proc"), kind="proc", options="rw"),
            Mount(root=self.root, point=self.point, kind=kind, options=options),
        ]
        return least_quota(f"9:name=systemd:/x\n4:{controllers}:{self.group}\n", mounted)


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("version", "files", "cores"),
    [
        (2, {"cpu.max": "150000 100000\n"}, 1.5),
        (2, {"cpu.max": "max 100000\n"}, None),
        (1, V1 | {"cpu.cfs_quota_us": "350000\n"}, 3.5),
        (1, V1 | {"cpu.cfs_quota_us": "-1\n"}, None),
    ],
)
def test_the_quota_of_either_version_is_read(
    tmp_path: Path, version: int, files: dict[str, str], cores: float | None
) -> None:
    write(tmp_path / "a" / "b", files)
    assert Hierarchy(tmp_path, "/a/b", "/", version).quota() == cores


def test_a_quota_higher_up_counts_when_it_is_less_and_what_cannot_be_read_is_none(
    tmp_path: Path,
) -> None:
    hierarchy = Hierarchy(tmp_path, "/a/b", "/", 2)
    assert hierarchy.quota() is None
    write(tmp_path / "a" / "b", {"cpu.max": "\n"})
    assert hierarchy.quota() is None
    write(tmp_path / "a" / "b", {"cpu.max": "400000 100000\n"})
    write(tmp_path / "a", {"cpu.max": "200000 100000\n"})
    assert hierarchy.quota() == 2
    write(tmp_path / "a", {"cpu.max": "max 100000\n"})
    assert hierarchy.quota() == 4


@pytest.mark.parametrize(
    ("group", "root"), [("/docker/1", "/docker/1"), ("/docker/1", "/"), ("/../2", "/")]
)
def test_a_container_that_sees_only_its_own_cgroup_reads_that(
    tmp_path: Path, group: str, root: str
) -> None:
    write(tmp_path, V1 | {"cpu.cfs_quota_us": "200000\n"})
    assert Hierarchy(tmp_path, group, root, 1).quota() == 2


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """Create a real cgroup limited to half a core; this needs root."""
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
        "from machine.cores.cores import *; c = usable_cores();"
        "print(c.number, cpu_quota(), c.counted)"
    )
    inside = f'echo $$ > {half_a_core}/cgroup.procs && exec "$0" "$@"'
    text = python(counts, within=("bash", "-c", inside))
    assert text.startswith("1 0.5 ")
    if len(os.sched_getaffinity(0)) > 1:
        assert "quota is 0.5" in text
