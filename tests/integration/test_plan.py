"""Runs and their plan: refused before ranks start, forced, and never in the way."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from rundir.paths import RunDir
from rundir.units import GIB
from tests.cgroup_limits import limited
from tests.running import SHORT, User, as_options, assert_nothing_left, ended, wait_for

# Hundreds of gigabytes of activations, from samples no longer than the data's.
HUGE = as_options(
    "train.micro_batch_size=262144", "train.global_batch_size=524288", "data.packing=false"
)


@pytest.fixture
def cold_cache(tmp_path: Path) -> dict[str, str]:
    """Return a cache without any answer."""
    return {"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")}


def plan_in(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.plan.read_text())
    return found


def assert_refused(code: int, err: str, run: RunDir) -> None:
    assert code == 3
    assert "does not fit: the host needs" in err
    assert "→ ./start.sh tiny" in err
    assert "--force   # try it all the same" in err
    assert "Traceback" not in err
    assert plan_in(run)["verdict"] == "does not fit"
    assert plan_in(run)["instead"]
    assert json.loads(run.status.read_text())["exit_code"] == 3
    assert_nothing_left(run)


@pytest.mark.long
def test_what_cannot_fit_is_refused_late_and_with_a_known_answer_before_any_rank_is_started(
    user: User, cold_cache: dict[str, str]
) -> None:
    code, _, err = user.finish(*SHORT, *HUGE, env=cold_cache)
    run = user.run()
    assert_refused(code, err, run)
    assert not list(run.checkpoints.iterdir())
    # The plan was made again with the actual samples, none of which has the maximum length.
    assert plan_in(run)["longest_sample_tokens"] < 128
    code, _, err = user.finish(*SHORT, *HUGE, env=cold_cache)
    assert user.run().run_id != run.run_id
    run = user.run()
    assert_refused(code, err, run)
    assert not run.agent_log.exists()
    assert not list(run.path.glob("logs/attempt*"))


@pytest.mark.long
def test_with_force_it_is_tried_all_the_same(user: User, cold_cache: dict[str, str]) -> None:
    with limited(2 * GIB) as cgroup:
        limits = cgroup.command([])
        code, out, _ = user.finish(*SHORT, *HUGE, "--force", env=cold_cache, within=limits)
    assert code == 11  # nothing but memory has stopped it
    assert "plan: does not fit: the host needs" in out
    assert f"of 2.0 GiB (available in the cgroup {cgroup.group.folder}" in out
    assert "[Rank 0] LOCK: released" in out


def test_a_run_that_fits_keeps_its_plan_and_the_next_one_asks_nobody(
    user: User, cold_cache: dict[str, str]
) -> None:
    out = user.output_of(*SHORT, env=cold_cache)
    assert "plan: fits: the host needs" in out
    assert plan_in(user.run())["verdict"] == "fits"
    env = cold_cache | user.hooked("train.trace.step_trace", "os._exit(9)")
    assert "fits: the host needs" in user.output_of(*SHORT, "--dry-run", env=env)


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "words"),
    [("os._exit(9)", "no plan: .* exit code 9"), ("__import__('time').sleep(1000)", "")],
)
def test_a_tracer_that_fails_or_hangs_is_never_in_the_way(
    user: User, cold_cache: dict[str, str], body: str, words: str
) -> None:
    env = cold_cache | user.hooked("train.trace.step_trace", body)
    out = user.output_of(*SHORT, env=env)
    assert re.search(words, out)
    assert not user.run().plan.exists()
    assert_nothing_left(user.run())


def test_a_stop_while_it_is_asked_leaves_nothing(user: User, cold_cache: dict[str, str]) -> None:
    env = cold_cache | user.hooked("train.trace.step_trace", "__import__('time').sleep(1000)")
    env |= user.hooked("train.chat.template", "__import__('time').sleep(1000)")
    with ended(user.airlock(*SHORT, env=env)) as process:
        own = psutil.Process(process.pid)
        wait_for(lambda: len(own.children()) > 1, why="no tracer beside the preparation")
        children = own.children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 21
    assert not [child for child in children if child.is_running()]


def test_a_dry_run_shows_the_plan_and_writes_no_run(user: User, cold_cache: dict[str, str]) -> None:
    code, out, err = user.finish("run", "tiny", "--dry-run", env=cold_cache)
    assert (code, err) == (0, "")
    assert "fits: the host needs" in out
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()
