"""The part of a real run's environment that reaches its ranks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from launch.config.rank_environment import rank_environment
from machine.gpus.devices import Placement
from rundir.config import RunConfig
from rundir.paths import RunDir
from tests.running import (
    COLD,
    ENDLESS,
    SHORT,
    Start,
    Typed,
    finish,
    rank_pids,
    run_folder,
    training,
)

LEFT_OVER = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_BUFFSIZE": "4096", "RANK": "7", "PET_NNODES": "3"}


def started_with(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; a forked one has its parent's."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if word)


@pytest.mark.parametrize(
    "start", [(), pytest.param(COLD, marks=pytest.mark.long)], ids=["warm", "cold"]
)
def test_leftovers_are_reported_and_reach_no_rank_unless_they_are_to_be_kept(
    airlock: Start, environ: dict[str, str], start: tuple[str, ...]
) -> None:
    keep = ("--set", "launch.keep_env=NCCL_BUFFSIZE")
    with training(airlock(*ENDLESS, *start, *keep, env=LEFT_OVER), environ) as (process, run):
        for rank, pid in rank_pids(run).items():
            found = started_with(pid)
            assert found["NCCL_BUFFSIZE"] == "4096"
            assert "CUDA_LAUNCH_BLOCKING" not in found
            assert "PET_NNODES" not in found
            assert found.get("RANK") == (str(rank) if start else None)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 20, err
    before_the_start = out[: out.index("MEM:START")]
    assert "not passed on: PET_NNODES=3 RANK=7: " in before_the_start
    assert "not passed on: CUDA_LAUNCH_BLOCKING=1: " in before_the_start
    assert "--set launch.keep_env=NCCL_BUFFSIZE,CUDA_LAUNCH_BLOCKING\n" in before_the_start
    written = json.loads(run.environment.read_text())
    gone = {one["name"] for one in written["not_passed_on"]}
    assert gone == {"PET_NNODES", "RANK", "CUDA_LAUNCH_BLOCKING"}
    assert all(one["reason"] for one in written["variables"] + written["not_passed_on"])


def test_a_dry_run_shows_every_variable_and_what_is_not_passed_on(
    typed: Typed, environ: dict[str, str]
) -> None:
    code, out, err = typed("run", "tiny", "--dry-run", env=LEFT_OVER)
    assert code == 0, err
    run = RunDir(Path(environ["AIRLOCK_RUNS_DIR"]) / "RUN_ID")
    expected = rank_environment(
        RunConfig(profile="tiny"), Placement("cpu", 2, "", ()), run, environ | LEFT_OVER
    )
    for one in expected.variables:
        assert f"  {one.name}={one.value}" in out
        assert f"  {one.source}: {one.reason}\n" in out
    assert [one.name for one in expected.left_out] == [
        "PET_NNODES",
        "RANK",
        "NCCL_BUFFSIZE",
        "CUDA_LAUNCH_BLOCKING",
    ]
    for gone in expected.left_out:
        assert re.search(rf"^not passed on: .*{gone.name}={gone.value}[ :]", out, re.MULTILINE)
        assert f": {gone.reason}\n" in out
    line = out.splitlines()[-1]
    assert line.startswith("env -u PET_NNODES -u RANK -u NCCL_BUFFSIZE -u CUDA_LAUNCH_BLOCKING ")
    assert " torchrun --nnodes=1 --nproc-per-node=2 " in line


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"AIRLOCK_LAUNCH_KEEP_ENV": "NCCL_DEBIG"}, "perhaps NCCL_DEBUG?"),
        ({"PYTORCH_ALLOC_CONF": ",a:1"}, "PYTORCH_ALLOC_CONF=a:1"),
    ],
)
def test_a_mistake_ends_the_run_before_anything_is_written(
    typed: Typed, environ: dict[str, str], env: dict[str, str], said: str
) -> None:
    code, _, err = typed("run", "tiny", env=env)
    assert code == 2
    assert said in err
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()


@pytest.mark.gpu
@pytest.mark.parametrize("nccl", ["default", "low-memory"])
def test_on_gpus_the_users_allocator_settings_and_low_memory_are_understood(
    airlock: Start, environ: dict[str, str], nccl: str
) -> None:
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    code, _, err = finish(airlock(*SHORT, "--set", f"launch.nccl={nccl}", env=own))
    assert code == 0, err
    log = run_folder(environ).rank_log(0, 0).read_text()
    assert "ALLOC_CONF" not in log
