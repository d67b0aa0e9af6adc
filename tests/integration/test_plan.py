"""Runs and their plan: refused before ranks start, forced, and never in the way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rundir.paths import RunDir
from rundir.units import GIB
from tests.memory_cgroup import limited
from tests.running import (
    SHORT,
    Start,
    assert_nothing_left,
    ended,
    finish,
    hooked,
    run_folder,
    wait_for,
)

# Hundreds of gigabytes of activations, from samples no longer than the data's.
HUGE = (
    "--set",
    "train.micro_batch_size=262144",
    "--set",
    "train.global_batch_size=524288",
    "--set",
    "data.packing=false",
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
    airlock: Start, environ: dict[str, str], cold_cache: dict[str, str]
) -> None:
    code, _, err = finish(airlock(*SHORT, *HUGE, env=cold_cache))
    run = run_folder(environ)
    assert_refused(code, err, run)
    assert not list(run.checkpoints.iterdir())
    # The plan was made again with the actual samples, none of which has the maximum length.
    assert plan_in(run)["longest_sample_tokens"] < 128
    code, _, err = finish(airlock(*SHORT, *HUGE, env=cold_cache))
    assert run_folder(environ).run_id != run.run_id
    run = run_folder(environ)
    assert_refused(code, err, run)
    assert not run.agent_log.exists()
    assert not list(run.path.glob("logs/attempt*"))


@pytest.mark.long
def test_with_force_it_is_tried_all_the_same(
    environ: dict[str, str], cold_cache: dict[str, str], tmp_path: Path
) -> None:
    with limited(2 * GIB) as cgroup:
        process = subprocess.Popen(
            cgroup.command([sys.executable, "-P", "-m", "launch", *SHORT, *HUGE, "--force"]),
            cwd=tmp_path,
            env=environ | cold_cache,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with ended(process):
            code, out, _ = finish(process)
    assert code == 11  # nothing but memory has stopped it
    assert "plan: does not fit: the host needs" in out
    assert f"of 2.0 GiB (available in the cgroup {cgroup.group.folder}" in out
    assert "[Rank 0] LOCK: released" in out


def test_a_run_that_fits_keeps_its_plan_and_the_next_one_asks_nobody(
    airlock: Start, environ: dict[str, str], cold_cache: dict[str, str], tmp_path: Path
) -> None:
    code, out, err = finish(airlock(*SHORT, env=cold_cache))
    assert code == 0, err
    assert "plan: fits: the host needs" in out
    assert plan_in(run_folder(environ))["verdict"] == "fits"
    env = cold_cache | hooked(environ, tmp_path, "train.trace.step_trace", "os._exit(9)")
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, err
    assert "plan: fits: the host needs" in out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("os._exit(9)", "no plan: .* exit code 9", marks=pytest.mark.long),
        ("__import__('time').sleep(1000)", ""),
    ],
)
def test_a_tracer_that_fails_or_hangs_is_never_in_the_way(
    airlock: Start,
    environ: dict[str, str],
    cold_cache: dict[str, str],
    tmp_path: Path,
    body: str,
    words: str,
) -> None:
    env = cold_cache | hooked(environ, tmp_path, "train.trace.step_trace", body)
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, err
    assert re.search(words, out)
    assert not run_folder(environ).plan.exists()
    assert_nothing_left(run_folder(environ))


def test_a_stop_while_it_is_asked_leaves_nothing(
    airlock: Start, environ: dict[str, str], cold_cache: dict[str, str], tmp_path: Path
) -> None:
    env = cold_cache | hooked(
        environ, tmp_path, "train.trace.step_trace", "__import__('time').sleep(1000)"
    )
    env |= hooked(environ, tmp_path, "train.chat.template", "__import__('time').sleep(1000)")
    with ended(airlock(*SHORT, env=env)) as process:
        own = psutil.Process(process.pid)
        wait_for(lambda: len(own.children()) > 1, why="no tracer beside the preparation")
        children = own.children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 21
    assert not [child for child in children if child.is_running()]


def test_a_dry_run_shows_the_plan_and_writes_no_run(
    airlock: Start, environ: dict[str, str], cold_cache: dict[str, str]
) -> None:
    code, out, err = finish(airlock("run", "tiny", "--dry-run", env=cold_cache))
    assert (code, err) == (0, "")
    assert "fits: the host needs" in out
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()


def test_a_script_has_no_plan(
    airlock: Start, environ: dict[str, str], cold_cache: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("print('done')\n")
    code, out, _ = finish(airlock("run", "script.py", env=cold_cache))
    assert code == 0
    assert "plan" not in out.replace(str(tmp_path), "")
    assert not run_folder(environ).plan.exists()
