"""The report of a run that ran out of memory: who, in which phase, of whose memory, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.run.supervise.report import exit_code, report
from machine.processes.signals import Signals
from rundir.errors import ExitCode
from rundir.paths import RunDir
from rundir.schema import RANK_PHASES
from rundir.units import MIB
from tests.state.story import GONE, REAL, Story, root
from tests.state.test_state import asked_to_stop

LEFT: dict[str, Any] = {
    "available_bytes": 50 * MIB,
    "limit_bytes": 1024 * MIB,
    "where": "the cgroup /a/b",
}


def ended_by_guard(story: Story, rank: int | None = 1, **changed: Any) -> None:
    told = {
        "failed_rank": rank,
        "who": "the zygote" if rank is None else f"rank {rank}",
        "phase": "training",
        "held_bytes": 700 * MIB,
        "run_held_bytes": 900 * MIB,
    }
    story.tell("error", "memory.guard", **(told | LEFT | changed))


def reported(story: Story, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    code = exit_code(story.state, 10, Signals())
    report(Console(width=1000), RunDir(folder), story.state, code)
    return capsys.readouterr().out


@pytest.mark.parametrize("is_told_first", [True, False])
def test_what_the_guard_ended_is_the_root_and_the_run_is_out_of_memory(
    story: Story, is_told_first: bool
) -> None:
    story.raised(0, GONE)
    if is_told_first:
        ended_by_guard(story)
    story.exited(1, -9, "SIGKILL")
    if not is_told_first:
        ended_by_guard(story)
    rank, title = root(story.state)
    assert rank == 1
    assert title == (
        "ended by the memory guard while training: it held 700 MiB, and 50 MiB were left of "
        "1,024 MiB"
    )
    assert exit_code(story.state, 10, Signals()) is ExitCode.OUT_OF_MEMORY
    assert exit_code(story.state, 10, asked_to_stop()) is ExitCode.OUT_OF_MEMORY
    assert story.state.status.ranks[1].phase == "failed"


def test_the_zygote_can_be_what_the_guard_ended(story: Story) -> None:
    ended_by_guard(story, None, phase="loading")
    story.exited(0, 255, None)
    story.tell("error", "zygote.exit", exitcode=-9, signal="SIGKILL")
    failure = story.state.root_failure()
    assert failure is not None
    assert failure.summary.startswith(
        "the zygote ended by the memory guard while loading the model"
    )
    assert failure.exit_code == ExitCode.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("num_kills", "signal", "title", "code"),
    [
        (1, "SIGKILL", "killed by the kernel's OOM killer", ExitCode.OUT_OF_MEMORY),
        (0, "SIGKILL", "killed by SIGKILL", ExitCode.RANK_FAILED),
        (1, "SIGSEGV", "killed by SIGSEGV", ExitCode.RANK_FAILED),
    ],
)
def test_only_a_rank_killed_when_the_kernels_count_rose_was_killed_by_it(
    story: Story, num_kills: int, signal: str, title: str, code: ExitCode
) -> None:
    if num_kills:
        story.tell("error", "memory.oom_kill", num_kills=num_kills, **LEFT)
    story.exited(2, -9, signal)
    assert root(story.state) == (2, title)
    assert exit_code(story.state, 10, Signals()) is code


def test_the_proof_is_not_one_for_the_next_attempt(story: Story) -> None:
    story.tell("error", "memory.oom_kill", num_kills=1, **LEFT)
    story.exited(2, -9, "SIGKILL")
    story.attempt = 1
    story.tell("mark", "attempt")
    story.exited(0, -9, "SIGKILL")
    assert story.state.restarts == ["rank 2 killed by the kernel's OOM killer"]
    assert root(story.state) == (0, "killed by SIGKILL")


def test_an_agent_that_the_kernel_killed_is_told_of(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.tell("error", "memory.oom_kill", num_kills=1, **LEFT)
    assert exit_code(story.state, -9, Signals()) is ExitCode.OUT_OF_MEMORY
    text = reported(story, tmp_path, capsys)
    assert "torch's agent" in text
    assert "killed by the kernel's OOM killer" in text


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {},
            [
                "rank 1 ended by the memory guard while training",
                "of the cgroup /a/b\n",
                "train.micro_batch_size=1",
                "AIRLOCK_LIMITS_GUARD_GIB=0",
            ],
        ),
        ({"phase": "loading"}, ["launch.admit=serial"]),
        (
            {"run_held_bytes": 100 * MIB, "held_bytes": 90 * MIB},
            ["no more than 100 MiB: others hold most"],
        ),
    ],
)
def test_the_report_names_the_bound_and_what_helps_in_that_phase(
    story: Story,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    expected: list[str],
) -> None:
    ended_by_guard(story, **changed)
    text = reported(story, tmp_path, capsys)
    assert [part for part in expected if part not in text] == []
    assert ("micro_batch_size" in text) == ("phase" not in changed)


def test_an_exception_of_another_rank_before_the_guard_acted_stays_told(story: Story) -> None:
    story.raised(0, REAL)
    ended_by_guard(story)
    assert root(story.state)[0] == 1
    assert {one.rank for one in story.state.failures} == {0, 1}


@pytest.mark.parametrize("phase", RANK_PHASES)
def test_a_rank_can_be_ended_in_any_phase(story: Story, phase: str) -> None:
    ended_by_guard(story, phase=phase)
    assert "ended by the memory guard" in root(story.state)[1]


def test_a_rank_that_has_said_why_it_fails_and_is_ended_then_is_told_of_by_that(
    story: Story,
) -> None:
    story.raised(1, REAL, ExitCode.OUT_OF_MEMORY)
    ended_by_guard(story, phase="failed")
    assert root(story.state) == (1, f"RuntimeError: {REAL}")
