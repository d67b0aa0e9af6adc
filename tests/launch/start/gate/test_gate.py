"""The gate with real processes that take it, wait for it and die in it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rundir.errors import UserError
from tests.launch.start.gate.visits import Start, inside, notes, said, visit
from tests.rundir.test_full_disk import SmallDisk
from tests.running import wait_for


def test_two_serial_runs_are_never_inside_together_and_keep_rank_order(
    start: Start, log: Path
) -> None:
    # The order of arrival is not the order of admission.
    processes = [start(run, rank, 0.05) for rank in (3, 1, 2, 0) for run in ("a", "b")]
    assert [process.wait(60) for process in processes] == [0] * 8
    passages = [line for line in log.read_text().splitlines() if line.startswith(("in", "out"))]
    for entered, left in zip(passages[::2], passages[1::2], strict=True):
        assert entered.replace("in ", "out ") == left
    for run in ("a", "b"):
        assert [line for line in passages if f"in {run}" in line] == [
            f"in {run} {rank}" for rank in range(4)
        ]


def test_a_holder_that_is_killed_frees_the_gate_though_a_child_of_it_lives_on(
    start: Start, log: Path
) -> None:
    first = start("a", 0, 1000, fork=True)
    child = int(wait_for(lambda: said(log, "child"), why="no child")[0].split()[1])
    try:
        second = start("a", 1, 0)
        wait_for(lambda: said(log, "waits"), why="rank 1 did not wait")
        first.kill()
        assert second.wait(30) == 0
        os.kill(child, 0)  # it is still there
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
    start("a", 0, 1000)
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    second, third = start("a", 1, 0), start("a", 2, 0)
    wait_for(lambda: len(said(log, "waits")) == 2, why="ranks 1 and 2 did not wait")
    second.kill()
    Path(f"{log}.go0").touch()
    assert third.wait(30) == 0


def test_who_waits_can_read_who_is_inside_in_which_phase(folder: Path) -> None:
    gate = visit(folder)
    with gate.admitted():
        gate.phase("loading")
        (entry,) = inside(folder)
    assert abs(entry.since_mono - time.monotonic()) < 60  # whatever the clock is set to
    assert (entry.run, entry.who, entry.pid) == ("here", "rank 0", os.getpid())
    assert str(entry) == f"rank 0 of here, pid {os.getpid()}, loading for 0 s"
    assert entry.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert inside(folder) == []
    assert list((folder / "ledger").iterdir()) == []


def test_a_wait_that_is_too_long_ends_with_the_name_of_the_holder_and_with_open_nobody_waits(
    start: Start, log: Path, folder: Path
) -> None:
    holder = start("other", 0, 1000)
    wait_for(lambda: said(log, "in"), why="the holder did not get in")
    with visit(folder, admit="open").admitted() as admission:
        assert admission.num_beside == 0
    reminders: list[str] = []
    with pytest.raises(TimeoutError, match=f"rank 0 of other, pid {holder.pid}, admitted"):
        visit(folder, timeout_s=0.3, on_wait=reminders.append).admitted().__enter__()
    assert reminders == [""]
    # An entry that cannot be understood is someone, and who died inside is struck off.
    (file,) = (folder / "ledger").glob("*.json")
    file.write_text('{"run": "x", ')
    with pytest.raises(TimeoutError, match="held by someone of another version's run"):
        visit(folder, timeout_s=0.3).admitted().__enter__()
    holder.kill()
    holder.wait()
    assert inside(folder) == []
    assert list((folder / "ledger").iterdir()) == []


def test_the_gate_is_free_again_after_an_exception_inside(folder: Path) -> None:
    with pytest.raises(RuntimeError), visit(folder).admitted():
        raise RuntimeError
    assert notes(folder, "here").read() is None  # half a passage counts for nothing
    with visit(folder).admitted():
        pass


def test_one_without_a_turn_waits_for_nobodys_and_leaves_none(folder: Path) -> None:
    alone = visit(folder, rank=None)
    with alone.admitted():
        assert [entry.who for entry in inside(folder)] == ["zygote"]
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
    threading.Timer(0.7, ranks[1].kill).start()
    gate.wait_until_all_passed(3)
    assert ranks[1].wait(10) == -signal.SIGKILL
    assert "out here 1" in said(log, "out")
    assert said_while_waiting == []  # it is no longer inside, and waits nowhere to be let in


def test_a_full_disk_at_the_gate_is_said_and_what_to_do(small_disk: Path) -> None:
    small_disk.chmod(0o700)
    disk = SmallDisk(small_disk)
    disk.fill()
    with pytest.raises(UserError, match=r"the gate cannot write to .* No space left"):
        visit(small_disk).admitted().__enter__()
    disk.free()
    with visit(small_disk).admitted():
        pass
