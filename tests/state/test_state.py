"""The state of a run, folded from its events: phases, memory and the time left."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.run.supervise.event_lines import plain_line
from launch.run.supervise.report import exit_code, report
from machine.processes.signals import Signals
from rundir.errors import ExitCode
from rundir.paths import RunDir
from tests.state.story import GONE, PLAN, REAL, Story, root

RESULT: dict[str, Any] = {"tokens_per_s": 9.0, "gpu_peak_bytes": None, "checkpoint": "c"} | {
    "mfu": None,
    "hfu": None,
}


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


def test_a_ranks_phase_follows_its_events(story: Story) -> None:
    row = story.state.status.ranks[1]
    assert row.phase == "spawn"
    for kind, name, phase in [
        ("start", "lock.wait", "waiting"),
        ("end", "lock.wait", "waiting"),
        ("start", "lock.hold", "importing"),
        ("start", "import", "importing"),
        ("start", "model.load", "loading"),
        ("end", "lock.hold", "ready"),
        ("start", "pg.init", "ready"),
        ("end", "ddp.wrap", "training"),
    ]:
        met: dict[str, Any] = {"address": "host:1", "world_size": 2} if name == "pg.init" else {}
        story.tell(kind, name, 1, **met)
        assert row.phase == phase
    story.raised(1, REAL)
    story.tell("end", "lock.hold", 1)  # on its way out
    assert row.phase == "failed"
    assert story.state.status.ranks[0].phase == "spawn"


def test_a_ranks_memory_is_that_of_its_last_mark(story: Story) -> None:
    memory = {"pss_anon_bytes": 5, "vms_bytes": 1, "host_available_bytes": 1}
    for rss in (10, 20):
        event = story.tell("mark", "mem.start", 2, rss_bytes=rss, gpu_used_bytes=None, **memory)
    row = story.state.status.ranks[2]
    assert (row.rss_bytes, row.pss_anon_bytes, row.gpu_used_bytes) == (20, 5, None)
    assert (row.pid, row.last_event_t) == (event["pid"], event["t"])


def test_a_run_trains_and_finishes(story: Story) -> None:
    state, status = story.state, story.state.status
    state.enter("starting")
    assert status.phase == "starting"
    for first in (6, 0):  # of a run that goes on from another, and of one that begins
        story.tell("mark", "train.plan", 0, **(PLAN | {"first_step": first}))
        assert (status.phase, status.step, status.total_steps) == ("training", first, 10)
    story.tell("metric", "eval", 0, step=0, loss=3.0, exact_match=0.0)
    for step in (1, 10):
        story.train(step, loss=2.0 / step)
    assert (status.phase, status.step, status.loss) == ("finishing", 10, 0.2)
    assert state.first_loss == 2.0
    story.tell("end", "checkpoint", 0, step=10, duration_s=0.1, ok=True)
    story.tell("metric", "eval", 0, step=10, loss=1.0, exact_match=0.5)
    story.tell("mark", "train.result", 0, result="done", step=10, **RESULT)
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


def test_after_a_rollback_and_after_a_restart_the_pace_is_that_since(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    for step in (1, 2, 3):
        story.train(step, t=1000.0 + step, loss=5.0)
    bad: dict[str, Any] = {"loss": 9.0, "usual": 1.0, "limit": 2.0, "samples": [], "num_samples": 0}
    story.tell("mark", "loss.bad", 0, step=4, answer="rollback", text="", **bad)
    for attempt in (0, 1):
        if attempt:
            story.attempt = attempt
            story.tell("mark", "attempt")
            story.tell("mark", "train.plan", 0, **PLAN)
        story.train(2, t=1010.0)
        assert story.state.status.eta_s is None
        story.train(3, t=1012.0)
        assert story.state.status.eta_s == 14.0
    assert story.state.first_loss == 5.0


def test_a_held_out_loss_that_is_no_number_is_said_and_reported(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    for step, loss in ((0, 3.0), (10, math.nan)):
        story.tell("metric", "eval", 0, step=step, loss=loss, exact_match=None)
    assert plain_line(story.state, story.state.evals[-1]) == "held-out after step 10  loss nan"
    story.state.end(ExitCode.DONE)
    report(Console(width=1000), RunDir(tmp_path), story.state, ExitCode.DONE)
    assert "3.0000 → nan" in capsys.readouterr().out


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


def test_a_pause_is_a_phase_and_no_part_of_the_pace(story: Story) -> None:
    status = story.state.status
    answer: dict[str, Any] = {"ids": [], "said": "", "step": 3}
    story.tell("mark", "train.plan", 0, **PLAN)
    story.train(1, t=1000.0)
    story.train(3, t=1004.0)
    story.tell("mark", "control", 0, request="pause", done=True, **answer)
    assert (status.phase, status.step) == ("paused", 3)
    story.tell("mark", "control", 0, request="resume", done=True, **answer)
    assert status.phase == "training"
    story.train(4, t=5000.0)
    story.train(6, t=5004.0)
    assert status.eta_s == 8.0
    story.tell("mark", "control", 0, request="pause", done=False, **answer)
    assert status.phase == "training"


def test_the_peak_of_memory_is_kept_and_counts_processes_gone_before_it_was_measured(
    story: Story,
) -> None:
    host = {"pss_anon_bytes": 1, "num_processes": 1, "available_bytes": 1}
    for pss in (5, 9, 7):
        story.tell("metric", "host", pss_bytes=pss, **host)
    assert story.state.peak_pss_bytes == 9
    memory = {"rss_bytes": 70, "pss_anon_bytes": 40, "vms_bytes": 90}
    story.tell("mark", "mem.post_import", 1, **memory, host_available_bytes=1, gpu_used_bytes=None)
    assert story.state.peak_pss_bytes == 40


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
    story.tell("mark", "train.result", 0, result="stopped", step=5, **RESULT)
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
