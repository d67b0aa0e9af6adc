"""The memory still available on the host or in a cgroup, in real groups and in copies of v2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.starts.memory_cgroup import MemoryCgroup, NoCgroupError, memory_cgroup
from machine.memory.host_memory import Cgroup, HostMemory, memory_groups
from machine.mounts import filesystem_of, mounts
from rundir.units import GIB, MIB
from tests.cgroup_limits import limited
from tests.running import python, wait_for

LIMIT = 256 * MIB
NOW = (
    "from machine.memory.host_memory import HostMemory\n"
    "now = HostMemory().now()\n"
    "print(now.available_bytes, now.total_bytes, HostMemory().is_limited, now.where)\n"
)


def inside(cgroup: MemoryCgroup, program: str) -> list[str]:
    """Return the words that `program` prints when run inside the group."""
    return python(program, within=cgroup.command([])).split(maxsplit=3)


def make_v2(folder: Path, **files: str) -> Cgroup:
    """Write a copy of what cgroup v2 shows of one group."""
    folder.mkdir(parents=True)
    usual = {
        "memory.max": "1073741824",
        "memory.high": "max",
        "memory.current": "600",
        "memory.stat": "anon 100\ninactive_file 200\nactive_file 50\nslab_reclaimable 8\n",
        "memory.events": "low 0\nhigh 0\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n",
        "memory.swap.max": "max",
        "memory.swap.current": "10",
    }
    for name, text in (
        usual | {key.replace("_", "."): text for key, text in files.items()}
    ).items():
        (folder / name).write_text(text if text.endswith("\n") else f"{text}\n")
    return Cgroup(folder, 2)


def make_proc(folder: Path, cgroup: str, *mounted: str) -> Path:
    """Write a copy of what /proc/self shows of a process in v2 groups."""
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(f"{cgroup}\n")
    lines = [f"{number} 1 0:26 {one}" for number, one in enumerate(mounted, start=30)]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    return folder


def test_in_a_limited_group_the_limit_bounds_what_can_be_had() -> None:
    with limited(LIMIT) as cgroup:
        available, total, is_limited, where = inside(cgroup, NOW)
        assert where.strip() == f"the cgroup {cgroup.group.folder}"
    assert (int(total), is_limited) == (LIMIT, "True")
    assert 0 < int(available) < LIMIT  # a Python process needs some of it


def test_a_limit_further_up_bounds_a_group_without_one() -> None:
    with limited(LIMIT) as cgroup:
        if cgroup.group.version == 2:
            pytest.skip("a group of v2 with processes in it has none below")
        below = cgroup.group.folder / "below"
        below.mkdir()
        try:
            _, total, is_limited, where = inside(MemoryCgroup(Cgroup(below, 1)), NOW)
            assert where.strip() == f"the cgroup {cgroup.group.folder}"
            assert (int(total), is_limited) == (LIMIT, "True")
        finally:
            below.rmdir()


def test_the_page_cache_of_a_group_counts_as_free(tmp_path: Path) -> None:
    """100 MiB written to a file stay in the cache; 100 MiB held by the process do not."""
    write = f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(100 << 20))\n"
    sync = "import os; os.sync()\n"  # dirty pages are reclaimed once they are on the disk
    with limited(LIMIT) as cgroup:
        before = int(inside(cgroup, NOW)[0])
        cached = int(inside(cgroup, write + sync + NOW)[0])
        used = int((cgroup.group.folder / _usage(cgroup)).read_text())
        held = int(inside(cgroup, "held = b'x' * (100 << 20)\n" + NOW)[0])
    assert used > 90 * MIB  # it really was in the cache
    assert abs(cached - before) < 30 * MIB
    assert held < before - 90 * MIB


def _usage(cgroup: MemoryCgroup) -> str:
    return "memory.usage_in_bytes" if cgroup.group.version == 1 else "memory.current"


def test_a_process_killed_for_want_of_memory_is_counted_and_one_killed_by_hand_is_not() -> None:
    by_hand, greedy = "import os; os.kill(os.getpid(), 9)", "held = b'x' * (1 << 30)"
    with limited(LIMIT) as cgroup:
        for program, num_kills in ((by_hand, 0), (greedy, 1)):
            command = cgroup.command([sys.executable, "-c", program])
            assert subprocess.run(command, check=False).returncode == -9
            assert cgroup.group.num_oom_kills() == num_kills


def test_of_a_limited_group_nothing_is_left_and_where_there_can_be_none_it_is_said_why() -> None:
    with limited(LIMIT) as cgroup:
        process = subprocess.Popen(cgroup.command(["sleep", "100"]))
        wait_for(cgroup.pids, why="it is not in the group", timeout_s=10)
        folder = cgroup.group.folder
    assert process.wait(10) == -9
    assert not folder.exists()
    with pytest.raises(NoCgroupError, match=r"no memory cgroup|in no memory cgroup"):
        memory_cgroup(-5).__enter__()  # a limit that no kernel accepts


def test_without_any_group_the_host_is_the_bound(tmp_path: Path) -> None:
    memory = HostMemory(make_proc(tmp_path, "0::/", "/ / rw - ext4 /dev/sda rw"))
    assert memory.groups == []
    now = memory.now()
    assert (now.where, now.total_bytes) == ("the host", psutil.virtual_memory().total)
    assert not memory.is_limited
    assert memory.num_oom_kills() >= 0


@pytest.mark.parametrize(
    ("maximum", "high", "limit"),
    [
        (str(GIB), "max", GIB),
        ("max", "max", None),
        ("max", "500", 500),
        ("700", "500", 500),
        ("300", "500", 300),
    ],
)
def test_the_lower_of_max_and_high_is_the_limit_of_a_group_of_v2(
    tmp_path: Path, maximum: str, high: str, limit: int | None
) -> None:
    group = make_v2(tmp_path / "own", memory_max=maximum, memory_high=high)
    assert group.limit_bytes() == limit
    assert group.available_bytes(1000) == 1000 - 600 + 200 + 50 + 8
    assert group.num_oom_kills() == 3


def test_all_limits_on_the_way_to_the_root_of_v2_count(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    make_v2(top / "user.slice", memory_max="100000", memory_current="90000")
    make_v2(top / "user.slice" / "job", memory_max="max")
    proc = make_proc(
        tmp_path / "proc", "0::/user.slice/job", f"/ {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    )
    memory = HostMemory(proc)
    folders = [group.folder for group in memory.groups]
    assert folders == [top / "user.slice" / "job", top / "user.slice"]  # the root has no limit
    now = memory.now()
    assert now.where == f"the cgroup {top / 'user.slice'}"
    assert (now.available_bytes, now.total_bytes) == (10000 + 258, 100000)
    assert memory.num_oom_kills() == 3


@pytest.mark.parametrize("root", ["/", "/kubepods/pod1/abc", "/../.."])
def test_in_a_container_that_sees_only_its_own_group_that_is_the_bound(
    tmp_path: Path, root: str
) -> None:
    """The path in /proc/self/cgroup is the host's, and does not exist inside."""
    top = tmp_path / "cgroup"
    make_v2(top, memory_max="100000")
    proc = make_proc(
        tmp_path / "proc", "0::/kubepods/pod1/abc", f"{root} {top} ro - cgroup2 cgroup rw"
    )
    assert [group.folder for group in memory_groups(proc)] == [top]
    memory = HostMemory(proc)
    assert memory.now().total_bytes == 100000
    for file in top.iterdir():  # the group is removed meanwhile
        file.unlink()
    assert memory.now().where == "the host"


@pytest.mark.parametrize(
    ("swap_max", "free", "swappable"), [("max", 700, 700), ("110", 700, 100), ("5", 700, 0)]
)
def test_swap_of_v2_is_what_its_own_limit_and_the_host_leave(
    tmp_path: Path, swap_max: str, free: int, swappable: int
) -> None:
    group = make_v2(tmp_path / "own", **{"memory.swap.max": swap_max})
    assert group.swap_bytes(GIB, free) == swappable


@pytest.mark.parametrize(
    ("both_limit", "swappable"), [(1000, 0), (1250, 250), (1 << 62, 700), (None, 700)]
)
def test_swap_of_v1_is_what_the_limit_on_both_leaves(
    tmp_path: Path, both_limit: int | None, swappable: int
) -> None:
    (tmp_path / "memory.usage_in_bytes").write_text("600")
    if both_limit is not None:
        (tmp_path / "memory.memsw.limit_in_bytes").write_text(str(both_limit))
        (tmp_path / "memory.memsw.usage_in_bytes").write_text("600")
    assert Cgroup(tmp_path, 1).swap_bytes(1000, 700) == swappable


def test_a_mount_point_with_a_space_is_found_and_the_filesystem_of_what_is_not_there_yet(
    tmp_path: Path,
) -> None:
    proc = make_proc(tmp_path, "0::/", r"/a\040b /mnt/my\040disk rw - nfs4 server:/ rw,hard")
    (mount,) = mounts(proc)
    assert (mount.root, mount.point, mount.kind) == ("/a b", Path("/mnt/my disk"), "nfs4")
    assert mount.options == "rw,hard"
    assert filesystem_of(Path("/proc/self/none/at/all")) == "proc"
