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
from tests.running import COLD, ENDLESS, SHORT, User, finish, rank_pids

LEFT_OVER = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_BUFFSIZE": "4096", "RANK": "7", "PET_NNODES": "3"}
KEEP = ("--set", "launch.keep_env=NCCL_BUFFSIZE")


def started_with(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; a forked one has its parent's."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if word)


def assert_no_leftovers(run: RunDir, *, is_cold: bool) -> None:
    """Fail unless of `LEFT_OVER` only what is to be kept has reached the ranks."""
    for rank, pid in rank_pids(run).items():
        found = started_with(pid)
        assert found["NCCL_BUFFSIZE"] == "4096"
        assert "CUDA_LAUNCH_BLOCKING" not in found
        assert "PET_NNODES" not in found
        assert found.get("RANK") == (str(rank) if is_cold else None)


def assert_reported(run: RunDir, out: str) -> None:
    """Fail unless the run has said what was not passed on."""
    before_the_start = out[: out.index("MEM:START")]
    assert "not passed on: PET_NNODES=3 RANK=7: " in before_the_start
    assert "not passed on: CUDA_LAUNCH_BLOCKING=1: " in before_the_start
    assert "--set launch.keep_env=NCCL_BUFFSIZE,CUDA_LAUNCH_BLOCKING\n" in before_the_start
    written = json.loads(run.environment.read_text())
    gone = {one["name"] for one in written["not_passed_on"]}
    assert gone == {"PET_NNODES", "RANK", "CUDA_LAUNCH_BLOCKING"}
    assert all(one["reason"] for one in written["variables"] + written["not_passed_on"])


@pytest.mark.long
def test_leftovers_are_reported_and_reach_no_cold_rank_either(user: User) -> None:
    with user.training(*ENDLESS, *COLD, *KEEP, env=LEFT_OVER) as (process, run):
        assert_no_leftovers(run, is_cold=True)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 20, err
    assert_reported(run, out)


def test_a_dry_run_shows_every_variable_and_what_is_not_passed_on(user: User) -> None:
    out = user.typed.output_of("run", "tiny", "--dry-run", env=LEFT_OVER)
    run = RunDir(Path(user.environ["AIRLOCK_RUNS_DIR"]) / "RUN_ID")
    expected = rank_environment(
        RunConfig(profile="tiny"), Placement("cpu", 2, "", ()), run, user.environ | LEFT_OVER
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
    user: User, env: dict[str, str], said: str
) -> None:
    err = user.typed.error_of("run", "tiny", env=env)
    assert said in err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()


@pytest.mark.gpu
@pytest.mark.parametrize("nccl", ["default", "low-memory"])
def test_on_gpus_the_users_allocator_settings_and_low_memory_are_understood(
    user: User, nccl: str
) -> None:
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    user.output_of(*SHORT, "--set", f"launch.nccl={nccl}", env=own)
    log = user.run().rank_log(0, 0).read_text()
    assert "ALLOC_CONF" not in log
