"""The state of a run, folded from its events: phases, time left, and the root of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.process.signals import Signals
from launch.run_state.state import RunState, new_state
from launch.supervise.console import plain_line
from launch.supervise.report import exit_code
from rundir.events import Event, EventWriter, read_events
from rundir.exit_codes import ExitCode

TRAIN = {
    "lr": 1e-4,
    "grad_norm": 1.0,
    "tokens_per_s": 50.0,
    "time_data_s": 0.0,
    "time_forward_s": None,
    "time_backward_s": None,
    "time_comm_s": 0.0,
    "time_optimizer_s": None,
}
PLAN = {
    "total_steps": 10,
    "first_step": 0,
    "num_parameters": 1,
    "num_trainable": 1,
    "num_train_samples": 1,
    "num_eval_samples": 1,
}
REAL, GONE = "CUDA out of memory", "[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


class Story:
    """Events as their writers write them, at times of the test's choosing, applied to a state."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self._folder, self._num_told, self._clock = folder, 0, 100.0
        self.attempt = 0  # the attempt of the next events
        self.state = new_state("run", "tiny", num_ranks)

    def tell(
        self, kind: str, name: str, rank: int | None = None, t: float | None = None, **fields: Any
    ) -> Event:
        folder = self._folder / str(self._num_told)
        folder.mkdir()
        writer = EventWriter(folder / "a.jsonl", rank=rank, attempt=self.attempt)
        writer.emit(kind, name, **fields)
        (event,) = read_events(folder)
        self._num_told += 1
        self._clock = self._clock + 1 if t is None else t
        event |= {"t": self._clock, "mono": self._clock}
        self.state.add(event)
        return event

    def raised(self, rank: int, message: str, code: ExitCode = ExitCode.RANK_FAILED) -> None:
        self.tell(
            "error",
            "rank.exception",
            rank,
            exception="RuntimeError",
            message=message,
            traceback=f"Traceback of {rank}",
            exit_code=int(code),
        )

    def exited(self, rank: int, exitcode: int, signal: str | None) -> None:
        self.tell(
            "error",
            "rank.exit",
            failed_rank=rank,
            exitcode=exitcode,
            signal=signal,
        )

    def train(
        self, step: int, *, t: float | None = None, loss: float = 1.0, mfu: float | None = None
    ) -> Event:
        return self.tell("metric", "train", 0, t, step=step, loss=loss, mfu=mfu, **TRAIN)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path, 3)


def root(state: RunState) -> tuple[int | None, str]:
    failure = state.root_failure()
    assert failure is not None
    return failure.rank, failure.title


def asked_to_stop() -> Signals:
    signals = Signals()
    signals.ask_to_stop()
    return signals


def test_a_checkpoint_that_could_not_be_saved_is_none_and_the_run_has_failed(story: Story) -> None:
    story.tell("end", "checkpoint", 0, step=10, duration_s=0.1, ok=False)
    story.raised(0, "No space left on device")
    story.exited(0, 1, None)
    assert story.state.last_checkpoint is None
    assert exit_code(story.state, 10, asked_to_stop()) is ExitCode.RANK_FAILED


def test_a_rank_ended_by_sigterm_is_the_root_of_the_lost_connections_of_the_others(
    story: Story,
) -> None:
    story.raised(0, GONE)
    story.exited(1, -15, "SIGTERM")
    assert root(story.state) == (1, "killed by SIGTERM")


def test_a_rank_that_ended_with_nothing_to_say_is_the_root_of_those_killed_for_it(
    story: Story,
) -> None:
    story.tell("error", "rank.gone", None, failed_rank=1)
    story.state.ended_by_us.add(0)
    story.exited(0, -9, "SIGKILL")
    assert root(story.state) == (1, "ended before the training did")


def test_a_ranks_phase_follows_its_events(story: Story) -> None:
    row = story.state.status.ranks[1]
    seen = [row.phase]
    for kind, name in [
        ("start", "lock.wait"),
        ("end", "lock.wait"),
        ("start", "lock.hold"),
        ("start", "import"),
        ("start", "model.load"),
        ("end", "lock.hold"),
        ("start", "pg.init"),
        ("end", "ddp.wrap"),
    ]:
        story.tell(kind, name, 1)
        seen.append(row.phase)
    assert seen == [
        "spawn",
        "waiting",
        "waiting",
        "importing",
        "importing",
        "loading",
        "ready",
        "ready",
        "training",
    ]
    story.raised(1, REAL)
    story.tell("end", "lock.hold", 1)  # on its way out
    assert row.phase == "failed"
    assert story.state.status.ranks[0].phase == "spawn"


def test_a_ranks_memory_is_that_of_its_last_mark(story: Story) -> None:
    for rss in (10, 20):
        event = story.tell(
            "mark",
            "mem.start",
            2,
            rss_bytes=rss,
            pss_anon_bytes=5,
            vms_bytes=1,
            host_available_bytes=1,
            gpu_used_bytes=None,
        )
    row = story.state.status.ranks[2]
    assert (row.rss_bytes, row.pss_anon_bytes, row.gpu_used_bytes) == (20, 5, None)
    assert (row.pid, row.last_event_t) == (event["pid"], event["t"])


def test_a_run_trains_and_finishes(story: Story) -> None:
    state, status = story.state, story.state.status
    state.enter("starting")
    assert status.phase == "starting"
    story.tell("mark", "train.plan", 0, **PLAN)
    assert (status.phase, status.step, status.total_steps) == ("training", 0, 10)
    story.tell("metric", "eval", 0, step=0, loss=3.0, exact_match=0.0)
    for step in (1, 10):
        story.train(step, loss=2.0 / step)
    assert (status.phase, status.step, status.loss) == ("finishing", 10, 0.2)
    assert state.first_loss == 2.0
    story.tell("end", "checkpoint", 0, step=10, duration_s=0.1, ok=True)
    story.tell("metric", "eval", 0, step=10, loss=1.0, exact_match=0.5)
    story.tell(
        "mark",
        "train.result",
        0,
        result="done",
        step=10,
        tokens_per_s=9.0,
        mfu=None,
        gpu_peak_bytes=None,
        checkpoint="c",
    )
    assert (state.last_checkpoint, status.exact_match, len(state.evals)) == (10, 0.5, 2)
    code = exit_code(state, 0, Signals())
    state.end(code)
    assert (code, status.phase, status.exit_code) == (ExitCode.DONE, "done", 0)
    assert [row.phase for row in status.ranks] == ["done"] * 3
    assert status.error is None


def test_the_time_left_is_at_the_pace_since_the_first_report(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    story.train(1, t=1000.0)  # the first steps are slow: no estimate is made from them
    assert story.state.status.eta_s is None
    story.train(3, t=1004.0)
    assert story.state.status.eta_s == 14.0
    story.train(10, t=1011.0)
    assert story.state.status.eta_s == 0.0


def test_a_resumed_run_starts_where_the_other_ended(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **(PLAN | {"first_step": 6}))
    assert (story.state.status.step, story.state.status.phase) == (6, "training")


def test_a_run_that_is_stopping_stays_so_until_it_has_ended(story: Story) -> None:
    state = story.state
    state.enter("stopping")
    story.tell("mark", "train.plan", 0, **PLAN)
    story.train(10)
    assert state.status.phase == "stopping"
    assert exit_code(state, 0, asked_to_stop()) is ExitCode.INTERRUPTED_UNSAVED
    story.tell("end", "checkpoint", 0, step=10, duration_s=0.1, ok=True)
    state.end(exit_code(state, 0, asked_to_stop()))
    assert state.status.phase == "interrupted"
    assert state.status.exit_code == ExitCode.INTERRUPTED_SAVED


def test_the_peak_of_host_memory_is_kept(story: Story) -> None:
    for pss in (5, 9, 7):
        story.tell(
            "metric", "host", pss_bytes=pss, pss_anon_bytes=1, num_processes=1, available_bytes=1
        )
    assert story.state.peak_pss_bytes == 9


def test_an_exception_is_the_root_of_the_lost_connections_that_follow(story: Story) -> None:
    story.raised(2, REAL, ExitCode.OUT_OF_MEMORY)
    story.raised(0, GONE)
    story.exited(2, 1, None)
    story.exited(1, -15, "SIGTERM")
    assert root(story.state) == (2, f"RuntimeError: {REAL}")
    assert len(story.state.failures) == 3  # rank 2 has reported its own failure
    code = exit_code(story.state, 10, Signals())
    story.state.end(code)
    assert code is ExitCode.OUT_OF_MEMORY
    assert story.state.status.phase == "failed"
    assert story.state.status.error == f"rank 2: RuntimeError: {REAL}"


def test_an_exception_is_the_root_even_if_a_lost_connection_was_told_first(story: Story) -> None:
    story.raised(0, GONE)
    story.raised(2, REAL)
    assert root(story.state)[0] == 2


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV", "SIGBUS"])
def test_a_rank_killed_is_the_root_of_what_the_others_raised_before_it_was_seen(
    story: Story, signal: str
) -> None:
    story.raised(0, GONE)
    story.raised(1, "Timed out waiting for the others")
    story.exited(2, -9, signal)
    assert root(story.state) == (2, f"killed by {signal}")
    assert exit_code(story.state, 10, Signals()) is ExitCode.RANK_FAILED
    assert story.state.status.ranks[2].phase == "failed"


def test_a_rank_that_the_agent_ended_is_never_the_root(story: Story) -> None:
    story.exited(0, -15, "SIGTERM")
    story.exited(1, 7, None)
    assert root(story.state) == (1, "ended with exit code 7")


def test_of_equally_likely_roots_the_earliest_is_chosen(story: Story) -> None:
    story.raised(1, "first")
    story.raised(0, "second")
    assert root(story.state) == (1, "RuntimeError: first")


def test_a_run_whose_agent_ends_well_without_a_ranks_word_has_failed(story: Story) -> None:
    assert story.state.root_failure() is None
    assert exit_code(story.state, 0, Signals()) is ExitCode.RANK_FAILED


def test_mfu_is_shown_beside_the_speed_where_it_is_known(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    line = plain_line(story.state, story.train(1))
    assert line is not None
    assert line.endswith("50 tokens/s")
    line = plain_line(story.state, story.train(2, mfu=0.4312))
    assert line is not None
    assert "50 tokens/s  MFU 43.1%" in line
    assert story.state.status.mfu == 0.4312


def test_a_new_attempt_starts_without_the_failures_of_the_last(story: Story) -> None:
    state = story.state
    story.tell("mark", "train.plan", 0, **PLAN)
    story.tell("end", "checkpoint", 0, step=5, duration_s=0.1, ok=True)
    story.tell(
        "mark",
        "train.result",
        0,
        result="stopped",
        step=5,
        tokens_per_s=9.0,
        mfu=None,
        gpu_peak_bytes=None,
        checkpoint="c",
    )
    story.raised(0, GONE)
    story.exited(1, -9, "SIGKILL")
    story.attempt = 1
    story.tell("mark", "attempt")
    assert state.restarts == ["rank 1 killed by SIGKILL"]
    assert (state.status.attempt, state.status.phase) == (1, "starting")
    assert [row.pid for row in state.status.ranks] == [None] * 3
    assert state.root_failure() is None
    assert (state.result, state.ended_by_us) == ({}, set())
    assert state.last_checkpoint == 5  # a saved checkpoint stays saved


def test_what_is_told_late_of_an_attempt_that_has_ended_is_not_counted(story: Story) -> None:
    story.attempt = 1
    story.tell("mark", "attempt")
    story.attempt = 0
    story.raised(2, REAL)
    story.exited(1, -9, "SIGKILL")
    assert story.state.root_failure() is None
    assert story.state.status.ranks[2].pid is None
    story.attempt = 1
    story.raised(1, REAL)
    assert root(story.state) == (1, f"RuntimeError: {REAL}")


def test_the_zygotes_end_is_the_root_of_that_of_the_ranks(story: Story) -> None:
    story.exited(0, 255, None)
    story.exited(1, 255, None)
    story.tell("error", "zygote.exit", exitcode=-9, signal="SIGKILL")
    assert root(story.state) == (None, "killed by SIGKILL")
    story.state.end(exit_code(story.state, 10, Signals()))
    assert story.state.status.error == "the zygote: killed by SIGKILL"


def test_forks_of_a_zygote_that_was_given_up_are_forgotten(story: Story) -> None:
    story.tell("start", "zygote.import", what="torch")
    story.tell("start", "lock.hold", 0)
    assert story.state.status.ranks[0].pid is not None
    assert "torch" in story.state.zygote
    story.tell("mark", "start", start="cold", reason="no rank could be forked")
    assert story.state.status.ranks[0].pid is None
    assert story.state.zygote == ""


def test_the_time_left_after_a_restart_is_at_the_pace_since_then(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    story.train(1, t=1000.0, loss=5.0)
    story.attempt = 1
    story.tell("mark", "attempt")
    story.tell("mark", "train.plan", 0, **PLAN)
    story.train(3, t=2000.0)
    assert story.state.status.eta_s is None
    story.train(4, t=2001.0)
    assert story.state.status.eta_s == 6.0
    assert story.state.first_loss == 5.0
