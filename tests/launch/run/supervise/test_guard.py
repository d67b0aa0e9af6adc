"""The memory guard, in a real cgroup and against real processes that take memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.starts.memory_cgroup import MemoryCgroup
from machine.memory.limits import guard_threshold_bytes
from machine.processes.descendants import OwnProcesses
from rundir.config import LimitsConfig
from rundir.events import Event, read_events
from rundir.units import GIB, MIB
from state.memory_owners import MemoryOwner, fastest, held_bytes, largest, memory_owners
from state.run_state import new_state
from tests.cgroup_limits import limited
from tests.conftest import ROOT
from tests.running import wait_for

LIMIT = 512 * MIB

# A run reduced to its guard: the given programs are its ranks, and the first to end ends it.
GUARDED = """
import json, subprocess, sys, time
from pathlib import Path
from rich.console import Console
from launch.run.supervise.guard import MemoryGuard
from machine.processes.descendants import OwnProcesses
from state.run_state import new_state
from rundir.config import LimitsConfig
from rundir.events import EventWriter

folder, guard_gib, programs = Path(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])
state = new_state("run", "tiny", len(programs))
state.enter("training")
events = EventWriter(folder / "launch.jsonl")
guard = MemoryGuard(LimitsConfig(guard_gib=guard_gib), state=state, events=events,
                    processes=OwnProcesses(), console=Console())
guard.start()
ranks = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
for row, rank in zip(state.status.ranks, ranks):
    row.pid, row.phase = rank.pid, "training"
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.01)
exits = [{"name": "rank.exit", "signal": "SIGKILL"}] * any(rank.returncode == -9 for rank in ranks)
print("proven" if guard.proves_oom(exits, None) else "not proven")
guard.stop()
for rank in ranks:
    rank.kill()
"""
GROWS = "held = []\nwhile True: held.append(b'x' * (4 << 20))"
RESTS = "import time; time.sleep(100)"
HOLDS_100_MIB = "held = b'x' * (100 << 20)\n" + RESTS
HOLDS_200_MIB = "held = b'x' * (200 << 20)\n" + RESTS
WORKER = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
WORKER_GROWS = WORKER.format(GROWS)
KILLS_ITSELF = "import os; os.kill(os.getpid(), 9)"


def start_guarded(
    cgroup: MemoryCgroup, folder: Path, *programs: str, guard_gib: float = -1
) -> subprocess.Popen[str]:
    args = [str(folder), str(guard_gib), json.dumps(programs)]
    return subprocess.Popen(
        cgroup.command([sys.executable, "-P", "-c", GUARDED, *args]),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
    )


def guarded(folder: Path, *programs: str, guard_gib: float = -1) -> tuple[list[Event], str, int]:
    """Return (events, output, kills by the kernel) of a guarded run in its own group."""
    with limited(LIMIT) as cgroup:
        with start_guarded(cgroup, folder, *programs, guard_gib=guard_gib) as process:
            out, _ = process.communicate(timeout=60)
        return read_events(folder), out, cgroup.group.num_oom_kills()


def test_the_rank_whose_worker_grows_is_ended_before_the_kernel_ends_any(tmp_path: Path) -> None:
    # Both have just started; what rank 0 holds is far less than what is left for rank 1.
    events, out, num_kills = guarded(tmp_path, HOLDS_100_MIB, WORKER_GROWS)
    assert num_kills == 0
    assert out.strip() == "not proven"
    (event,) = events
    assert event["name"] == "memory.guard"
    assert (event["failed_rank"], event["who"], event["phase"]) == (1, "rank 1", "training")
    assert 64 * MIB <= event["held_bytes"] < event["run_held_bytes"] < LIMIT
    assert 0 < event["available_bytes"] < LIMIT / 2
    assert event["limit_bytes"] == LIMIT
    assert "cgroup" in event["where"]


def test_without_the_guard_the_kernel_kills_and_that_is_proven(tmp_path: Path) -> None:
    events, out, num_kills = guarded(tmp_path, RESTS, GROWS, guard_gib=0)
    assert (num_kills, out.strip()) == (1, "proven")
    (event,) = events
    assert (event["name"], event["num_kills"]) == ("memory.oom_kill", 1)
    assert event["limit_bytes"] == LIMIT
    assert event["available_bytes"] < LIMIT / 2


def test_a_rank_that_fits_is_left_alone_and_its_kill_by_hand_is_no_proof(tmp_path: Path) -> None:
    fits = f"held = b'x' * (250 << 20)\nimport time; time.sleep(0.5)\n{KILLS_ITSELF}"
    events, out, _ = guarded(tmp_path, RESTS, fits)
    assert (events, out.strip()) == ([], "not proven")


def test_when_others_take_the_memory_no_small_rank_is_ended_for_it(tmp_path: Path) -> None:
    outsider = f"held = b'x' * {LIMIT - 100 * MIB}\n{RESTS}"
    with limited(LIMIT) as cgroup:
        process = start_guarded(cgroup, tmp_path, RESTS, guard_gib=0.2)
        wait_for(lambda: len(cgroup.pids()) == 2, why="no rank was started", timeout_s=20)
        with subprocess.Popen(cgroup.command([sys.executable, "-c", outsider])) as other:
            events = wait_for(lambda: read_events(tmp_path), why="it said nothing", timeout_s=20)
            assert len(cgroup.pids()) == 3  # all are alive
            other.kill()
    out, _ = process.communicate()  # ended with the group
    assert [event["name"] for event in events] == ["memory.low"]
    assert events[0]["run_held_bytes"] < 64 * MIB
    assert out.count("would not help") == 1


def test_a_run_that_does_not_grow_leaves_it_to_the_one_that_does(tmp_path: Path) -> None:
    """Two runs in one group: the guard of each watches its own."""
    with limited(LIMIT) as cgroup:
        folders = [tmp_path / "steady", tmp_path / "growing"]
        for folder in folders:
            folder.mkdir()
        steady = start_guarded(cgroup, folders[0], HOLDS_200_MIB)
        wait_for(lambda: _held_in(cgroup) > 200 * MIB, why="it holds nothing", timeout_s=20)
        slowly = "import time\n" + GROWS + "; time.sleep(0.01)"
        growing = start_guarded(cgroup, folders[1], slowly)
        growing.communicate(timeout=60)
        assert steady.poll() is None
        assert cgroup.group.num_oom_kills() == 0
    steady.communicate()
    assert [event["failed_rank"] for event in read_events(folders[1])] == [0]
    assert read_events(folders[0]) == []


def _held_in(cgroup: MemoryCgroup) -> int:
    return sum(held_bytes(pid) for pid in cgroup.pids())


@pytest.mark.parametrize(
    ("total", "threshold"),
    [(GIB, 64 * MIB), (24 * GIB, 24 * GIB * 2 // 100), (2048 * GIB, GIB)],
)
def test_what_is_kept_free_suits_small_groups_and_large_hosts(total: int, threshold: int) -> None:
    assert guard_threshold_bytes(LimitsConfig(), total) == threshold
    assert guard_threshold_bytes(LimitsConfig(guard_gib=0), total) == 0
    assert guard_threshold_bytes(LimitsConfig(guard_gib=0.5), total) == GIB // 2


STEADY, GROWN = MemoryOwner("rank 0", 0, "training", 900), MemoryOwner("rank 1", 1, "training", 500)


@pytest.mark.parametrize(
    ("before", "chosen"),
    [
        ({"rank 0": 900, "rank 1": 100}, GROWN),
        ({"rank 0": 700, "rank 1": 100}, GROWN),  # both have grown, this one by more
        ({"rank 0": 850, "rank 1": 450}, None),  # nobody has grown much
        ({"rank 0": 900}, GROWN),  # it was not there before
    ],
)
def test_who_has_grown_most_is_the_likeliest_cause(
    before: dict[str, int], chosen: MemoryOwner | None
) -> None:
    assert fastest([STEADY, GROWN], before, least_bytes=100) is chosen


def test_who_holds_most_is_ended_if_that_would_help() -> None:
    assert largest([STEADY, GROWN], least_bytes=100) is STEADY
    assert largest([STEADY, GROWN], least_bytes=1000) is None


def test_memory_is_held_by_the_rank_that_a_process_is_below() -> None:
    processes = OwnProcesses()
    programs = (HOLDS_200_MIB, WORKER.format(HOLDS_200_MIB))
    ranks = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        state = new_state("run", "tiny", 2)
        state.enter("training")
        for row, rank in zip(state.status.ranks, ranks, strict=True):
            row.pid, row.phase = rank.pid, "loading"

        def full_owners() -> list[MemoryOwner]:
            owners = memory_owners(state, processes.alive())
            is_full = [owner.held_bytes > 200 * MIB for owner in owners]
            return owners if is_full == [True, True] else []

        owners = wait_for(full_owners, why="nobody holds anything")
        assert {owner.rank: len(owner.processes) for owner in owners} == {0: 1, 1: 2}
        assert {owner.phase for owner in owners} == {"loading"}
    finally:
        for process in processes.alive():
            process.kill()
        for rank in ranks:
            rank.wait()


def test_a_process_that_has_ended_holds_nothing() -> None:
    process = subprocess.Popen(["true"])
    psutil.wait_procs([psutil.Process(process.pid)], timeout=5)
    assert held_bytes(process.pid) == 0
    process.wait()
    assert held_bytes(process.pid) == 0
