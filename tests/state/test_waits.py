"""Who waits for whom, and when that is a stall, judged from pulses and from real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine.processes.activity import all_io_bytes, letter_of
from machine.processes.stalled import look, written_file
from rundir.paths import RunDir
from rundir.pulse import Left, MainThread, Pulse, read_pulse
from state.waits import Stall, Waits
from tests.running import python

_LEFT = Left(how="ended", file="/x/train.py", line=212, code=0, mono=1.0)

_PIECE_BYTES = 256 << 10
# Its pages go to the disk, and no call counts them: so it is within one long call as well.
_MAPS = """
import mmap, sys
file, size = open(sys.argv[1], "r+b"), int(sys.argv[2])
mapped = mmap.mmap(file.fileno(), 0)
for number, _ in enumerate(iter(sys.stdin.buffer.readline, b"")):
    mapped[number * size : (number + 1) * size] = b"x" * size
    print(flush=True)
"""


class Two:
    """Two processes that sleep, with pulses that the test writes, and a clock that it moves."""

    def __init__(self, run: RunDir, processes: list[subprocess.Popen[bytes]], timeout_s: float):
        self.pids = {rank: one.pid for rank, one in enumerate(processes)}
        self.pulses = [Pulse(run.pulse(rank), 0, "script") for rank in self.pids]
        self.waits = Waits(run, timeout_s)
        self.now = time.monotonic()
        for rank in self.pids:
            self.computes(rank)

    def computes(self, rank: int) -> None:
        self.now += 0.001
        main = MainThread(file="/x/train.py", line=10, still_mono=self.now)
        self.pulses[rank].main_thread(main)

    def is_in(self, rank: int, call: str, *, number: int = 5) -> None:
        main = MainThread(
            file="/x/train.py",
            line=20 + rank,
            still_mono=self.now,
            waits_mono=self.now,
            waits_in=call,
        )
        self.pulses[rank].groups({"0": (number, number - 1)}, self.now)
        self.pulses[rank].main_thread(main)

    def look(self, num: int = 1, *, deaf_s: float = 0.0) -> Stall | None:
        """Look once a second; return the first stall of `num` looks.

        `deaf_s` is for how long no rank has shown anything.
        """
        for _ in range(num):
            self.now += 1.0
            for pulse in self.pulses:
                pulse.alive()
            if stall := self.waits.look(self.pids, 0, time.monotonic() + deaf_s, 1.0):
                return stall
        return None


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    both = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield both
    for one in both:
        one.kill()
        one.wait()


@pytest.fixture
def two(run: RunDir, processes: list[subprocess.Popen[bytes]]) -> Two:
    return Two(run, processes, -1.0)


def test_a_wait_is_told_after_half_a_minute_and_is_no_stall_while_the_other_moves(two: Two) -> None:
    two.is_in(0, "all_reduce")
    for second in range(120):
        two.computes(1)
        assert two.look() is None
        assert (two.waits.text is not None) == (second >= 29), second
    assert two.waits.text == "rank 0 has waited 2:00 for rank 1, which computes at /x/train.py:10"
    two.computes(0)
    assert two.look() is None
    assert two.waits.text is None


def test_a_wait_goes_on_while_a_rank_shows_nothing_for_a_moment(two: Two) -> None:
    two.is_in(0, "all_reduce")
    for _ in range(4):
        assert two.look(9) is None
        assert two.look(1, deaf_s=6.0) is None
    two.look(1)
    assert str(two.waits.text).startswith("rank 0 has waited 0:37 for rank 1")
    two.computes(0)
    two.look(1, deaf_s=6.0)
    two.is_in(0, "barrier")
    two.look(20)
    assert two.waits.text is None


def test_a_wait_for_one_that_has_left_is_a_stall_as_soon_as_it_is_a_wait(two: Two) -> None:
    two.is_in(0, "all_reduce")
    two.pulses[1].left(_LEFT)
    stall = two.look(60)
    assert stall is not None
    assert stall.waited_s == 32
    text = "rank 0 has waited 0:32 for rank 1, which has finished and left at /x/train.py:212"
    assert two.waits.text == text
    assert two.look(100) is None  # told once


def test_a_wait_for_one_that_is_stopped_is_a_stall_as_soon_as_it_is_a_wait(two: Two) -> None:
    two.is_in(0, "all_reduce")
    os.kill(two.pids[1], signal.SIGSTOP)
    while letter_of(two.pids[1]) != "T":
        time.sleep(0.001)
    assert two.look(60) is not None
    assert f"rank 1, which is stopped (kill -CONT {two.pids[1]})" in str(two.waits.text)


def test_a_wait_for_one_that_waits_for_a_lock_is_a_stall_once_nothing_of_it_moves(two: Two) -> None:
    two.is_in(0, "all_reduce")
    main = MainThread(file="/x/train.py", line=10, still_mono=two.now, in_lock=True)
    two.pulses[1].main_thread(main)
    stall = two.look(80)
    assert stall is not None
    assert stall.waited_s < 40


def test_a_wait_for_one_that_is_still_is_a_stall_after_five_minutes(two: Two) -> None:
    two.is_in(0, "all_reduce")
    stall = two.look(400)
    assert stall is not None
    assert stall.waited_s in (300, 301)
    assert "rank 1, which has been idle for" in str(two.waits.text)


@pytest.mark.parametrize(
    ("call", "number", "after_s"), [("broadcast", 5, 32), ("all_reduce", 6, 32), ("recv", 5, 300)]
)
def test_ranks_in_different_collectives_can_none_of_them_go_on(
    two: Two, call: str, number: int, after_s: int
) -> None:
    two.is_in(0, "all_reduce" if call != "recv" else "send")
    two.is_in(1, call, number=number)
    stall = two.look(400)
    assert stall is not None
    assert stall.waited_s in (after_s, after_s + 1)
    assert "all ranks have waited" in str(two.waits.text)


def test_a_rank_that_writes_is_not_still(
    run: RunDir, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, 10.0)
    two.pids[1] = os.getpid()  # this process writes
    two.is_in(0, "barrier")
    for _ in range(30):
        (tmp_path / "model").write_bytes(bytes(20_000))
        assert two.look() is None


def test_one_that_writes_within_a_single_call_is_not_still_either(
    run: RunDir, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, 10.0)
    two.is_in(0, "barrier")
    file = tmp_path / "model"
    file.write_bytes(b"")
    os.truncate(file, 30 * _PIECE_BYTES)
    command = [sys.executable, "-c", _MAPS, str(file), str(_PIECE_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        two.pids[1] = child.pid
        for number in range(30):
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            if number == 1 and all_io_bytes([child.pid])[1] < _PIECE_BYTES:
                pytest.skip("this file is on no disk")
            assert two.look() is None, number
        assert two.look(30) is not None  # now it is still


def test_the_file_is_named_that_a_rank_has_been_writing(
    run: RunDir, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, -1.0)
    disk = tmp_path / "disk"
    os.mkfifo(disk)
    writes = "import os, sys; os.write(os.open(sys.argv[1], os.O_RDWR), bytes(1 << 20))"
    with subprocess.Popen([sys.executable, "-c", writes, str(disk)]) as child:
        try:
            deadline = time.monotonic() + 30.0
            while not (file := written_file(child.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not file:
                pytest.skip("the system calls of a process may not be read here")
            two.pids[1] = child.pid
            two.is_in(0, "barrier")
            two.look(35)
            seen = look(child.pid)
            assert (seen["syscall"], seen["syscall_on"]) == ("write", str(disk))
        finally:
            child.kill()
    assert f"for rank 1, which has been writing {disk} for 0:3" in str(two.waits.text)


def test_a_rank_that_was_asked_where_it_is_has_not_moved_by_its_answer(
    run: RunDir, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, 10.0)
    two.pids[1] = os.getpid()  # this process writes the answer
    two.is_in(0, "barrier")
    record = run.flight_record(1)
    record.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(30):
        record.write_bytes(bytes(20_000))
        if two.look():
            break
    else:
        pytest.fail("an answer counts as movement")


def test_a_stall_that_was_none_is_taken_back_once_and_makes_the_next_one_later(
    run: RunDir, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, 60.0)
    two.is_in(0, "all_reduce")
    assert two.look(80) is not None
    assert not two.waits.is_over()
    assert not two.waits.has_gone_on(0, time.monotonic())
    two.now += 1
    two.is_in(0, "all_reduce", number=6)
    assert two.waits.has_gone_on(0, time.monotonic())
    two.look()
    assert two.waits.is_over()
    assert not two.waits.is_over()
    stall = two.look(140)
    assert stall is not None
    assert stall.waited_s in (120, 121)


def test_steps_that_usually_take_long_make_a_wait_no_news(two: Two) -> None:
    for number in range(5, 10):
        for rank in (0, 1):
            two.pulses[rank].groups({"0": (number, number)}, None)
            two.computes(rank)
        two.look(10)
    two.is_in(0, "all_reduce", number=9)
    two.look(40)
    assert two.waits.text is None
    two.look(20)
    assert two.waits.text is not None


def test_long_evaluations_between_short_steps_make_no_step_long(two: Two) -> None:
    for number in range(5, 10):
        for step in range(20):
            for rank in (0, 1):
                two.pulses[rank].groups({"0": (100 * number + step,) * 2}, None)
                two.computes(rank)
            two.look()
        two.look(12)
    two.is_in(0, "all_reduce", number=9)
    two.look(35)
    assert two.waits.text is not None


@pytest.mark.parametrize("prints", [False, True])
def test_a_rank_that_computes_in_one_function_and_never_prints_is_a_stall_in_the_end(
    run: RunDir, processes: list[subprocess.Popen[bytes]], prints: bool
) -> None:
    two = Two(run, processes, 20.0)
    two.is_in(0, "all_reduce")
    log = run.rank_log(1, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    stalls = []
    for second in range(240):
        two.computes(1)
        if prints and second % 30 == 0:
            with log.open("a") as file:
                file.write("evaluated another part\n")
        stalls.append(two.look())
    assert [stall.limit_s for stall in stalls if stall] == ([] if prints else [120])


def test_ranks_that_all_wait_for_nothing_of_each_other_are_left_alone(
    run: RunDir, processes: list[subprocess.Popen[bytes]]
) -> None:
    two = Two(run, processes, 20.0)
    assert two.look(200) is None
    assert two.waits.text is None


def test_a_rank_without_a_watchdog_says_nothing(two: Two, run: RunDir) -> None:
    two.is_in(0, "all_reduce")
    Pulse(run.pulse(1), 0, "script")
    assert two.look(100) is None
    assert not two.waits.is_known


def test_all_that_is_in_a_pulse_is_read_as_it_was_written(run: RunDir) -> None:
    pulse = Pulse(run.pulse(0), 3, "script")
    long = MainThread(file="/" + "ü" * 5000 + "/train.py", line=7, function="main", still_mono=2.0)
    pulse.groups({str(number): (10**9, 10**9 - number) for number in range(99)}, 4.5)
    pulse.main_thread(long)
    pulse.left(_LEFT)
    seen = read_pulse(run.pulse(0))
    assert seen is not None
    assert (seen.attempt, seen.phase, seen.left) == (3, "script", _LEFT)
    assert seen.groups["98"] == (10**9, 10**9 - 98)  # those that are farthest behind are kept
    assert seen.pending_mono == 4.5
    assert (seen.main.line, seen.main.function) == (7, "main")
    assert seen.main.file.endswith("ü/train.py")
    pulse.stepped(7)
    pulse.tick("forward")
    seen = read_pulse(run.pulse(0))
    assert seen is not None
    assert (seen.step, seen.num_steps, seen.phase) == (7, 1, "forward")
    run.pulse(0).write_text("torn")
    assert read_pulse(run.pulse(0)) is None
    assert read_pulse(run.pulse(1)) is None


def test_a_fork_does_not_write_where_the_script_has_ended(run: RunDir) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from rundir.pulse import Left, Pulse\n"
        "pulse = Pulse(Path(sys.argv[1]), 0, 'script')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    pulse.left(Left(how='ended', file='x', line=1, code=0, mono=0.0)); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    path = run.pulse(0)
    python(program, str(path))
    seen = read_pulse(path)
    assert seen is not None
    assert seen.left is None
