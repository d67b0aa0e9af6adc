"""The root of a failure: the rank that is to blame, and those that only follow."""

from __future__ import annotations

import pytest

from launch.run.supervise.report import exit_code, others_of
from machine.processes.signals import Signals
from rundir.errors import ExitCode
from tests.state.story import GONE, REAL, Story, root


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


def test_only_ranks_that_the_root_failure_ended_are_called_a_consequence(story: Story) -> None:
    story.raised(0, REAL)
    story.exited(1, 3, None)
    story.exited(2, -15, "SIGTERM")
    failure = story.state.root_failure()
    assert failure is not None
    lines = others_of(failure, story.state.failures)
    assert lines == ["also failed: rank 1 ended with exit code 3", "and, as a consequence, rank 2"]
    story.raised(1, REAL)
    lines = others_of(failure, [failure, *story.state.failures[-1:]])
    assert lines == ["also failed, in the same way: rank 1"]


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
