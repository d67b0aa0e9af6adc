"""The variables of the ranks: the user's own win where they may, leftovers are not passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launch.devices import Gpu, Placement
from launch.environment import Variable, child_environment, rank_variables
from rundir.config import RunConfig
from rundir.paths import ROOT, RunDir

CORES = len(os.sched_getaffinity(0))
ON_CPU = Placement("cpu", 2, "the default on CPU", ())
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
RUN = RunDir(Path("/runs/one"))


def variables(
    environ: Mapping[str, str], *, placement: Placement = ON_CPU, threads_per_rank: int = 0
) -> dict[str, Variable]:
    plain = RunConfig(profile="tiny")
    config = replace(plain, launch=replace(plain.launch, threads_per_rank=threads_per_rank))
    listed = rank_variables(config, placement, RUN, environ)
    by_name = {variable.name: variable for variable in listed}
    assert len(by_name) == len(listed)
    return by_name


@pytest.mark.parametrize("num_ranks", [1, 2, CORES, CORES + 1, 64])
def test_ranks_share_the_cores(num_ranks: int) -> None:
    found = variables({}, placement=Placement("cpu", num_ranks, "", ()))
    for name in THREADS:
        assert found[name].value == str(max(1, CORES // num_ranks))
        assert f"{CORES} cores for {num_ranks} ranks" in found[name].reason


def test_the_threads_of_a_rank_can_be_set() -> None:
    found = variables({}, threads_per_rank=7)
    assert {found[name].value for name in THREADS} == {"7"}


@pytest.mark.parametrize(
    "name", [*THREADS, "TOKENIZERS_PARALLELISM", "PYTORCH_NVML_BASED_CUDA_CHECK", "HF_HUB_OFFLINE"]
)
def test_a_users_value_wins_over_a_default(name: str) -> None:
    assert variables({name: "own"})[name].value == "own"
    assert variables({name: "own"})[name].source == "environment"
    assert variables({name: ""})[name].value == variables({})[name].value != "own"
    assert variables({name: ""})[name].source == "airlock"


@pytest.mark.parametrize(
    "name", ["AIRLOCK_RUN_DIR", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"]
)
def test_what_airlock_needs_wins_over_a_users_value(name: str) -> None:
    found = variables({name: "own"})[name]
    assert found.value == variables({})[name].value != "own"
    assert found.source == "airlock"


def test_every_variable_says_why_it_is_set() -> None:
    assert all(variable.reason for variable in variables({}).values())


def test_ranks_on_gpus_see_theirs_by_uuid_and_ranks_on_cpu_see_none() -> None:
    gpus = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100", 80 << 30) for i in (3, 1))
    placement = Placement("cuda", 2, "NUM_GPUS=2", gpus)
    seen = variables({"CUDA_VISIBLE_DEVICES": "3,1"}, placement=placement)
    assert seen["CUDA_VISIBLE_DEVICES"].value == "GPU-3,GPU-1"
    assert variables({"CUDA_VISIBLE_DEVICES": "3,1"})["CUDA_VISIBLE_DEVICES"].value == ""


@pytest.mark.parametrize(
    ("own", "whole"),
    [
        (None, [str(ROOT)]),
        ("", [str(ROOT)]),
        ("/a:/b", [str(ROOT), "/a", "/b"]),
        (f"/a:{ROOT}:/b", [str(ROOT), "/a", "/b"]),
        (":/a::", [str(ROOT), "/a"]),  # an empty entry would be the working directory
    ],
)
def test_the_clone_comes_first_on_the_path_then_the_users_own(
    own: str | None, whole: list[str]
) -> None:
    environ = {} if own is None else {"PYTHONPATH": own}
    assert variables(environ)["PYTHONPATH"].value.split(":") == whole


LEFT_OVER = [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "PYTHON_EXEC",
    "MASTER_ADDR", "MASTER_PORT", "PET_NPROC_PER_NODE", "PET_RDZV_ENDPOINT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
]  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_another_launcher_left_behind_is_not_passed_on(name: str) -> None:
    assert name not in child_environment([], {name: "1", "HOME": "/h"})


def test_everything_else_of_the_user_is_passed_on_and_nothing_is_changed() -> None:
    environ = {
        "HOME": "/h",
        "HF_TOKEN": "secret",
        "NCCL_DEBUG": "INFO",
        "MY_RANK": "1",
        "RANK": "5",
    }
    before = dict(environ)
    child = child_environment(list(variables(environ).values()), environ)
    assert {"HOME", "HF_TOKEN", "NCCL_DEBUG", "MY_RANK"} <= set(child)
    assert child["HF_TOKEN"] == "secret"  # noqa: S105
    assert child["AIRLOCK_RUN_DIR"] == str(RUN.path)
    assert environ == before
