"""The conditions under which a run counts as hung, judged from what ranks write."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rundir import control
from rundir.config import LaunchConfig
from rundir.events import Event
from rundir.paths import RunDir
from rundir.pulse import MainThread, Pulse, read_pulse
from state.hang import Hang, HangWatch
from state.run_state import RunState, new_state


class Ranks:
    """Two ranks that write their pulses, and a watch whose clock the test moves."""

    def __init__(
        self, run: RunDir, *, of_script: bool = False, hang_timeout_s: float = -1.0
    ) -> None:
        self.state: RunState = new_state(run.run_id, "tiny", 2, of_script=of_script)
        self.state.enter("training")
        self.pulses = [Pulse(run.pulse(rank)) for rank in (0, 1)]
        config = LaunchConfig(hang_timeout_s=hang_timeout_s)
        self.watch = HangWatch(run, config, self.state)
        # Whole seconds: the sum of 300 others is 300 or a little less.
        self.now = self.watch._looked_at = float(int(self.watch._looked_at))
        self.look([_joined(0), _joined(1)])

    def look(self, events: list[Event] | None = None, after_s: float = 1.0) -> Hang | None:
        self.now += after_s
        return self.watch.look(events or [], self.now)

    def train(self, num_steps: int, step_s: int = 1) -> None:
        """Let both ranks take steps, each of which lasts `step_s` looks."""
        for step in range(num_steps):
            for pulse in self.pulses:
                pulse.stepped(step + 1)
            for _ in range(step_s):
                assert self.look() is None

    def hangs_after(self, most_s: int) -> int | None:
        """Return the seconds without any progress until a hang is reported; None if it is not."""
        return next((second for second in range(1, most_s + 1) if self.look()), None)


def _joined(rank: int) -> Event:
    return {"kind": "end", "name": "all_loaded.wait", "rank": rank, "attempt": 0, "mono": 0.0}


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The pid of a process that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_no_step_for_longer_than_is_allowed_is_a_hang_and_told_once(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(3)
    assert ranks.hangs_after(20) == 11
    assert ranks.hangs_after(100) is None
    ranks.train(1)  # it continues after all
    assert ranks.hangs_after(20) == 11


def test_any_part_of_a_step_of_any_rank_is_progress(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(2)
    for _ in range(10):
        for _ in range(8):
            assert ranks.look() is None
        ranks.pulses[1].tick("forward")


def test_time_in_which_the_launcher_did_not_run_does_not_count(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(3)
    assert ranks.look(after_s=100_000.0) is None
    assert ranks.hangs_after(20) == 9


def test_what_is_usual_is_measured(run: RunDir) -> None:
    ranks = Ranks(run)
    ranks.train(4, step_s=30)
    assert ranks.hangs_after(700) in range(570, 603)  # 20 steps, of which one was under way
    fast = Ranks(run)
    fast.train(10)
    assert fast.hangs_after(400) == 301


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "export"])
def test_what_is_no_step_and_the_first_step_may_take_longer(run: RunDir, phase: str) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    assert ranks.hangs_after(100) == 61
    ranks.train(3)
    ranks.pulses[0].tick(phase)
    assert ranks.hangs_after(100) == 62


def test_a_checkpoint_that_is_being_written_is_progress(run: RunDir, tmp_path: Path) -> None:
    ranks = Ranks(run, hang_timeout_s=1.0)
    ranks.train(3)
    ranks.pulses[0].tick("checkpoint")  # the pulse is that of this process, which writes
    for _ in range(30):
        (tmp_path / "model").write_bytes(bytes(200_000))
        assert ranks.look() is None


def test_paused_ranks_hang_only_if_they_no_longer_meet(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=5.0)
    ranks.train(3)
    control.ask(run, "pause")
    assert ranks.hangs_after(30) is not None  # the request hides nothing
    ranks.state.enter("paused")
    for _ in range(30):
        for pulse in ranks.pulses:
            pulse.tick("paused")
        assert ranks.look() is None
    assert ranks.hangs_after(30) is not None


def test_ranks_that_wait_at_the_gate_do_not_hang(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=1.0)
    ranks.watch._joined.discard(1)
    ranks.state.enter("starting")
    assert ranks.hangs_after(30) is None


@pytest.mark.parametrize(("phase", "hangs"), [("loading", True), ("waiting", False)])
def test_a_rank_that_does_nothing_before_all_have_loaded_hangs(
    run: RunDir, sleeper: int, phase: str, hangs: bool
) -> None:
    ranks = Ranks(run, hang_timeout_s=2.0)
    ranks.watch._joined.discard(1)
    row = ranks.state.status.ranks[1]
    row.pid, row.phase = sleeper, phase
    assert (ranks.hangs_after(30) is not None) == hangs
    assert not ranks.watch.has_gone_on()


def test_ranks_whose_progress_cannot_be_seen_do_not_hang(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=1.0)
    ranks.train(3)
    run.pulse(1).unlink()
    assert ranks.hangs_after(30) is None


def test_ranks_that_move_while_they_are_looked_at_have_gone_on(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(3)
    assert ranks.hangs_after(20) == 11
    assert not ranks.watch.has_gone_on()
    ranks.pulses[1].tick("backward")
    assert ranks.watch.has_gone_on()
    assert ranks.hangs_after(20) == 12  # and can hang again


def test_a_wait_is_told_of_our_trainer_too_and_does_not_hide_its_hang(
    run: RunDir, sleeper: int
) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(3)
    ranks.now = ranks.watch._looked_at = ranks.now - 100  # the beat of the pulses is not too old
    for row, pulse in zip(ranks.state.status.ranks, ranks.pulses, strict=True):
        row.pid = sleeper
        pulse.groups({"0": (5 + row.rank, 4)}, 1.0)
        pulse.main_thread(MainThread(file="/x.py", still_mono=1.0, waits_mono=1.0))
    assert ranks.hangs_after(20) == 11
    waiting = ranks.state.status.waiting
    assert waiting is not None
    assert waiting.startswith("all ranks have waited 0:1")
    stall = ranks.watch.new_stall()  # they can never meet: said long before it is a hang
    assert stall is not None
    assert stall.waited_s < 10
    assert ranks.watch.new_stall() is None


def test_zero_is_never(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=0.0)
    assert ranks.hangs_after(3000) is None


def test_lines_that_ranks_print_are_no_progress_and_their_spans_are(run: RunDir) -> None:
    ranks = Ranks(run, hang_timeout_s=10.0)
    ranks.train(3)
    line = {"kind": "log", "name": "line", "rank": 0, "attempt": 0}
    span = {"kind": "start", "name": "eval", "rank": 0, "attempt": 0}
    assert [ranks.look([line]) is None for _ in range(10)] == [True] * 10
    assert ranks.look([span]) is None
    assert ranks.hangs_after(20) is not None


def test_a_script_hangs_when_it_neither_prints_nor_computes(run: RunDir, sleeper: int) -> None:
    ranks = Ranks(run, of_script=True, hang_timeout_s=10.0)
    log = run.rank_log(0, 0)
    log.parent.mkdir(parents=True)
    ranks.state.status.ranks[0].pid = sleeper
    for second in range(30):
        log.write_text("step\n" * second)
        assert ranks.look() is None
    assert ranks.hangs_after(70) is not None


def test_a_pulse_that_cannot_be_written_is_no_reason_to_end(tmp_path: Path) -> None:
    Pulse(tmp_path / "not" / "there" / "rank0").tick("forward")


def test_a_pulse_on_a_full_disk_is_none(small_disk: Path) -> None:
    with (small_disk / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    pulse = Pulse(small_disk / "rank0")
    pulse.tick("forward")
    assert read_pulse(small_disk / "rank0") is None
