"""The number of ranks that the gate admits at once: as many as memory and cores allow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.start.gate import gate as gate_module
from launch.start.gate.memory_profile import MemoryProfile
from machine.cores.cores import usable_cores
from rundir.errors import UserError
from rundir.units import MIB
from tests.cgroup_limits import limited
from tests.conftest import ROOT
from tests.launch.start.gate.visits import RANK, Start, foretell, most_inside, notes, said, visit
from tests.running import wait_for


def test_with_auto_the_first_goes_alone_and_the_rest_together_where_memory_allows(
    start: Start, log: Path, folder: Path
) -> None:
    first = start("a", 0, 1000, admit="auto", mib=100)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    for rank in (1, 2, 3):
        start("a", rank, 1000, admit="auto", mib=100)
    wait_for(lambda: len(said(log, "waits")) == 3, why="the others did not wait for it")
    assert most_inside(log) == 1
    Path(f"{log}.go0").touch()
    assert first.wait(60) == 0
    profile = notes(folder, "a").read()
    assert profile is not None
    assert 100 * MIB <= profile.peak_bytes < 130 * MIB
    wait_for(lambda: most_inside(log) == 3, why="the others did not get in together")


def test_with_auto_a_first_rank_that_dies_leaves_the_next_alone_too(
    start: Start, log: Path
) -> None:
    first = start("a", 0, 1000, admit="auto")
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    second = start("a", 1, 1.0, admit="auto")
    third = start("a", 2, 0, admit="auto")
    wait_for(lambda: len(said(log, "waits")) == 2, why="the others did not wait for it")
    first.kill()
    assert (second.wait(60), third.wait(60)) == (0, 0)
    assert said(log, "out") == ["out a 1", "out a 2"]
    passages = [line for line in log.read_text().splitlines() if line.startswith(("in", "out"))]
    assert passages.index("out a 1") < passages.index("in a 2")


def test_with_auto_ranks_wait_for_memory_and_for_cores_beside_the_others(
    start: Start, log: Path, folder: Path
) -> None:
    foretell(folder, "b", 0, cores=usable_cores().number)
    start("b", 0, 1000, admit="auto")
    wait_for(lambda: said(log, "in"), why="the other run's rank did not get in")
    for run, peak_bytes, cores, why in (
        ("large", 1 << 60, 0.0, r"can be had, .* GiB are wanted .* rank 0 of b"),
        ("busy", 0, usable_cores().number, r"cores are busy with those inside: held by rank 0 of"),
    ):
        foretell(folder, run, peak_bytes, cores)
        with pytest.raises(TimeoutError, match=why):
            visit(folder, admit="auto", run=run, timeout_s=0.3).admitted().__enter__()
    foretell(folder, "here", 0, cores=0.2)  # one that waits for a disk
    with visit(folder, admit="auto").admitted() as admission:
        assert admission.num_beside == 1


def test_how_busy_a_rank_was_is_measured(folder: Path) -> None:
    for run, work in (("busy", lambda: sum(range(10_000))), ("idle", lambda: time.sleep(0.01))):
        with visit(folder, admit="auto", run=run).admitted():
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                work()
    busy, idle = (notes(folder, run).read() for run in ("busy", "idle"))
    assert busy is not None
    assert idle is not None
    assert idle.cores < busy.cores < 1.6


def test_what_is_known_of_an_earlier_run_like_it_need_not_be_measured_first(folder: Path) -> None:
    def profile_foretold(run: str, known_as: str) -> MemoryProfile | None:
        with visit(folder, admit="auto", run=run, known_as=known_as).admitted() as admission:
            return admission.profile

    assert profile_foretold("first", "m") is None
    assert profile_foretold("second", "m") is not None
    assert profile_foretold("another", "n") is None
    (known,) = (folder / "growth").glob("m-*")
    known.write_text("{", encoding="utf-8")  # by whatever cause
    assert profile_foretold("third", "m") is None
    assert profile_foretold("fourth", "m") is not None  # the third has repaired it


@pytest.mark.parametrize("admit", ["auto", "open"])
@pytest.mark.runs
def test_under_a_cap_two_runs_come_up_with_auto_and_not_all_at_once(
    folder: Path, log: Path, admit: str
) -> None:
    # Eight take 100 MiB each at once; there is room for three.
    program = [sys.executable, "-P", "-c", RANK]
    with limited(600 * MIB) as cap:
        processes = [
            subprocess.Popen(
                cap.command([*program, folder, run, rank, admit, "2.0", "100", "False", log]),
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            for rank in ("0", "1", "2", "3")
            for run in ("a", "b")
        ]
        codes = [process.wait(100) for process in processes]
        num_kills = cap.group.num_oom_kills()
    if admit == "open":  # the case that auto exists for
        assert num_kills > 0
        assert -signal.SIGKILL in codes
        return
    assert (codes, num_kills) == ([0] * 8, 0)
    assert most_inside(log) in (2, 3)


def test_what_cannot_be_had_is_said_when_nobody_is_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_HOPELESS_S", 0.2)
    foretell(folder, "here", 1 << 60)
    with pytest.raises(UserError, match=r"rank 0 needs 1073741824.00 GiB .* of the host") as raised:
        visit(folder, admit="auto", timeout_s=30).admitted().__enter__()
    assert raised.value.code == 3


def test_a_serial_run_and_an_auto_run_share_the_gate(start: Start, log: Path, folder: Path) -> None:
    start("a", 0, 1000, admit="serial")
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    foretell(folder, "here", 0)  # it would fit anywhere
    with pytest.raises(TimeoutError, match="held by rank 0 of a"):
        visit(folder, admit="auto").admitted().__enter__()
