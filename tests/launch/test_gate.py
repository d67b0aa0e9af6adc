"""The gate with real processes that take it, wait for it and die in it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import gate as gate_module
from launch.cores import usable_cores
from launch.gate import Admit, Gate, Visitor
from launch.growth import Growth, GrowthNotes
from launch.memory import MIB
from rundir.errors import UserError
from tests.conftest import ROOT
from tests.memory_cgroup import limited
from tests.running import wait_for

# A rank that passes the gate: writes when it got in and when it left, stays inside a while, and
# takes some memory there; with `fork` it has a child that outlives it.
RANK = """
import os, sys, time
from pathlib import Path
from launch.gate import Gate, Visitor
folder, run, rank, admit, stay_s, mib, fork, log = sys.argv[1:]
def say(text):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{text} {run} {rank}\\n".encode())
def on_wait(reminder):
    say("waits" if not reminder else "reminded " + reminder.replace(" ", "_"))
visitor = Visitor(run_id=run, attempt="0", who=f"rank {rank}", turn=int(rank))
gate = Gate(Path(folder), visitor, admit=admit, timeout_s=60, on_wait=on_wait)
say("here")
with gate.admitted():
    say("in")
    if fork == "True" and os.fork() == 0:
        say(f"child {os.getpid()}")
        time.sleep(1000)
    taken = b"x" * (int(mib) << 20)
    until = time.monotonic() + float(stay_s)
    while time.monotonic() < until and not Path(f"{log}.go{rank}").exists():
        time.sleep(0.01)
    del taken
    say("out")
gate.wait_until_all_passed(int(rank) + 1)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    path.mkdir(mode=0o700)
    return path


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(folder: Path, log: Path) -> Iterator[Start]:
    """Start a rank; all are gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        run: str, rank: int, stay_s: float, *, admit: str = "serial", mib: int = 0,
        fork: bool = False,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        arguments = [str(folder), run, str(rank), admit, str(stay_s), str(mib), str(fork), str(log)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", RANK, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def said(log: Path, word: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(word + " ")]


def visit(
    folder: Path, *, rank: int | None = 0, admit: Admit = "serial", timeout_s: float = 1.0,
    on_wait: Callable[[str], None] = lambda _: None, run: str = "here", known_as: str = "",
) -> Gate:  # fmt: skip
    """This process at the gate."""
    who = "zygote" if rank is None else f"rank {rank}"
    visitor = Visitor(run_id=run, attempt="0", who=who, turn=rank, known_as=known_as)
    return Gate(folder, visitor, admit=admit, timeout_s=timeout_s, on_wait=on_wait)


def notes(folder: Path, run: str) -> GrowthNotes:
    return GrowthNotes(folder / "runs" / run / "rank.growth")


def foretell(folder: Path, run: str, peak_bytes: int, cores: float = 0.0) -> None:
    """As if a rank of that run had been measured."""
    notes(folder, run).write(0, Growth(peak_bytes=peak_bytes, cores=cores))


def most_inside(log: Path) -> int:
    """The most that were inside at once."""
    num = most = 0
    for line in log.read_text().splitlines():
        num += line.startswith("in ") - line.startswith("out ")
        most = max(most, num)
    return most


def test_two_serial_runs_are_never_inside_together_and_keep_rank_order(
    start: Start, log: Path
) -> None:
    # The order they come in is not the order they are admitted in.
    processes = [start(run, rank, 0.05) for rank in (3, 1, 2, 0) for run in ("a", "b")]
    assert [process.wait(60) for process in processes] == [0] * 8
    passages = [line for line in log.read_text().splitlines() if line.startswith(("in", "out"))]
    for entered, left in zip(passages[::2], passages[1::2], strict=True):
        assert entered.replace("in ", "out ") == left
    for run in ("a", "b"):
        assert [line for line in passages if f"in {run}" in line] == [
            f"in {run} {rank}" for rank in range(4)
        ]


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
    growth = notes(folder, "a").read()
    assert growth is not None
    assert 100 * MIB <= growth.peak_bytes < 130 * MIB
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


def test_with_auto_ranks_that_do_not_fit_beside_the_others_wait(
    start: Start, log: Path, folder: Path
) -> None:
    for run, growth in (("b", 0), ("here", 1 << 60)):  # nothing, and more than any machine has
        foretell(folder, run, growth)
    start("b", 0, 1000, admit="auto")
    wait_for(lambda: said(log, "in"), why="the other run's rank did not get in")
    with pytest.raises(TimeoutError, match=r"can be had, .* GiB are wanted .* rank 0 of b"):
        visit(folder, admit="auto").admitted().__enter__()


def test_with_auto_ranks_that_compute_are_no_more_than_the_cores(
    start: Start, log: Path, folder: Path
) -> None:
    for run in ("b", "here"):
        foretell(folder, run, 0, cores=usable_cores().number)
    start("b", 0, 1000, admit="auto")
    wait_for(lambda: said(log, "in"), why="the other run's rank did not get in")
    with pytest.raises(TimeoutError, match=r"cores are busy with those inside: held by rank 0 of"):
        visit(folder, admit="auto").admitted().__enter__()
    foretell(folder, "here", 0, cores=0.2)  # one that waits for a disk
    with visit(folder, admit="auto").admitted() as admission:
        assert admission.num_beside == 1


def test_how_busy_a_rank_was_is_measured(folder: Path) -> None:
    for run, work in (("busy", lambda: sum(range(10_000))), ("idle", lambda: time.sleep(0.01))):
        with visit(folder, admit="auto", run=run).admitted():
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                work()
    busy, idle = (notes(folder, run).read() for run in ("busy", "idle"))
    assert busy is not None
    assert idle is not None
    assert idle.cores < busy.cores < 1.6


def test_what_is_known_of_an_earlier_run_like_it_need_not_be_measured_first(folder: Path) -> None:
    def growth_foretold(run: str, known_as: str) -> Growth | None:
        with visit(folder, admit="auto", run=run, known_as=known_as).admitted() as admission:
            return admission.growth

    assert growth_foretold("first", "m") is None
    assert growth_foretold("second", "m") is not None
    assert growth_foretold("another", "n") is None
    (known,) = (folder / "growth").glob("m-*")
    known.write_text("{", encoding="utf-8")  # by whatever
    assert growth_foretold("third", "m") is None
    assert growth_foretold("fourth", "m") is not None  # the third has mended it


@pytest.mark.parametrize("admit", ["auto", "open"])
def test_under_a_cap_two_runs_come_up_with_auto_and_not_all_at_once(
    folder: Path, log: Path, admit: str
) -> None:
    # Eight take 100 MiB each at once; there is room for three.
    with limited(600 * MIB) as cap:
        processes = [
            subprocess.Popen(
                cap.command([
                    sys.executable, "-P", "-c", RANK, folder, run, rank, admit, "2.0", "100",
                    "False", log,
                ]),
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            for rank in ("0", "1", "2", "3") for run in ("a", "b")
        ]  # fmt: skip
        codes = [process.wait(100) for process in processes]
        num_kills = cap.group.num_oom_kills()
    if admit == "open":  # what auto is there for
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
    with pytest.raises(UserError, match=r"rank 0 needs 1073741824.00 GiB .* of the host") as found:
        visit(folder, admit="auto", timeout_s=30).admitted().__enter__()
    assert found.value.code == 3


def test_a_serial_run_and_an_auto_run_share_the_gate(start: Start, log: Path, folder: Path) -> None:
    start("a", 0, 1000, admit="serial")
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    foretell(folder, "here", 0)  # it would fit anywhere
    with pytest.raises(TimeoutError, match="held by rank 0 of a"):
        visit(folder, admit="auto").admitted().__enter__()


def test_with_open_nobody_waits(start: Start, log: Path, folder: Path) -> None:
    start("a", 0, 1000)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    with visit(folder, admit="open").admitted() as admission:
        assert admission.num_beside == 0


def test_a_holder_that_is_killed_frees_the_gate_for_the_next_rank(start: Start, log: Path) -> None:
    first = start("a", 0, 1000)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    second = start("a", 1, 0)
    wait_for(lambda: said(log, "waits"), why="rank 1 did not wait")
    first.kill()
    assert second.wait(30) == 0


def test_a_child_forked_inside_does_not_keep_the_gate(start: Start, log: Path) -> None:
    first = start("a", 0, 1000, fork=True)
    child = int(wait_for(lambda: said(log, "child"), why="no child")[0].split()[1])
    try:
        second = start("a", 1, 0)
        wait_for(lambda: said(log, "waits"), why="rank 1 did not wait")
        first.kill()
        assert second.wait(30) == 0
        os.kill(child, 0)  # it is there still
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_holder_that_is_stopped_is_named_so_and_goes_on_when_it_may(
    start: Start, log: Path, folder: Path
) -> None:
    first = start("a", 0, 0.5)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    first.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError, match=f"pid {first.pid}, admitted for . s, stopped by a sig"):
        visit(folder).admitted().__enter__()
    second = start("a", 1, 0)
    wait_for(lambda: said(log, "waits"), why="rank 1 did not wait")
    first.send_signal(signal.SIGCONT)
    assert (first.wait(30), second.wait(30)) == (0, 0)


def test_a_rank_killed_while_it_waits_is_skipped(start: Start, log: Path) -> None:
    start("a", 0, 2)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    second, third = start("a", 1, 0), start("a", 2, 0)
    wait_for(lambda: len(said(log, "waits")) == 2, why="ranks 1 and 2 did not wait")
    second.kill()
    assert third.wait(30) == 0


def test_who_waits_can_read_who_is_inside_in_which_phase(folder: Path) -> None:
    gate = visit(folder)
    with gate.admitted():
        gate.phase("loading")
        (entry,) = gate.inside()
    assert (entry.run, entry.who, entry.pid) == ("here", "rank 0", os.getpid())
    assert str(entry) == f"rank 0 of here, pid {os.getpid()}, loading for 0 s"
    assert entry.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert gate.inside() == []
    assert list((folder / "ledger").iterdir()) == []


def test_a_wait_that_is_too_long_ends_with_the_name_of_the_holder(
    start: Start, log: Path, folder: Path
) -> None:
    holder = start("other", 0, 1000)
    wait_for(lambda: said(log, "in"), why="the holder did not get in")
    reminders: list[str] = []
    with pytest.raises(TimeoutError, match=f"rank 0 of other, pid {holder.pid}, admitted"):
        visit(folder, timeout_s=0.3, on_wait=reminders.append).admitted().__enter__()
    assert reminders == [""]


def test_who_died_inside_is_struck_off(start: Start, log: Path, folder: Path) -> None:
    holder = start("a", 0, 1000)
    wait_for(lambda: said(log, "in"), why="the holder did not get in")
    assert len(list((folder / "ledger").glob("*.json"))) == 1
    holder.kill()
    holder.wait()
    assert visit(folder).inside() == []
    assert list((folder / "ledger").iterdir()) == []


def test_an_entry_that_cannot_be_understood_is_someone(
    start: Start, log: Path, folder: Path
) -> None:
    start("a", 0, 1000)
    wait_for(lambda: said(log, "in"), why="the holder did not get in")
    (file,) = (folder / "ledger").glob("*.json")
    file.write_text('{"run": "x", ')
    with pytest.raises(TimeoutError, match="held by someone of another version's run"):
        visit(folder, timeout_s=0.3).admitted().__enter__()


def test_the_gate_is_free_again_after_an_exception_inside(folder: Path) -> None:
    with pytest.raises(RuntimeError), visit(folder).admitted():
        raise RuntimeError
    assert notes(folder, "here").read() is None  # half a passage says nothing
    with visit(folder).admitted():
        pass


def test_one_without_a_turn_waits_for_nobodys_and_leaves_none(folder: Path) -> None:
    alone = visit(folder, rank=None)
    with alone.admitted():
        assert [entry.who for entry in alone.inside()] == ["zygote"]
    assert not (folder / "runs").exists()
    with visit(folder).admitted():
        pass


def test_all_have_passed_once_each_has_left_or_died(start: Start, log: Path, folder: Path) -> None:
    ranks = [start("here", 1, 0.5), start("here", 2, 1000)]
    said_while_waiting: list[str] = []
    gate = visit(folder, on_wait=said_while_waiting.append)
    with gate.admitted():
        pass
    wait_for(lambda: "in here 2" in said(log, "in"), why="rank 2 did not get in")
    threading.Timer(1.0, ranks[1].kill).start()
    gate.wait_until_all_passed(3)
    assert ranks[1].wait(10) == -signal.SIGKILL
    assert "out here 1" in said(log, "out")
    assert said_while_waiting == []  # it is inside no more, and waits to be let in nowhere


def test_a_full_disk_at_the_gate_is_said_and_what_to_do(small_disk: Path) -> None:
    small_disk.chmod(0o700)
    with contextlib.suppress(OSError), (small_disk / "full").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(UserError, match=r"the gate cannot write to .* No space left"):
        visit(small_disk).admitted().__enter__()
    (small_disk / "full").unlink()
    with visit(small_disk).admitted():
        pass


def test_the_age_of_a_phase_does_not_depend_on_the_clock(folder: Path) -> None:
    gate = visit(folder)
    with gate.admitted():
        (entry,) = gate.inside()
        (file,) = (folder / "ledger").glob("*.json")
        content = json.loads(file.read_text())
    assert abs(content["since_mono"] - time.monotonic()) < 60
    assert abs(entry.since_mono - time.time()) > 1e6  # it is no wall clock's time
