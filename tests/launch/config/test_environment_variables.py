"""The variables of the ranks: the user's own win where they may, leftovers are not passed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.environment_text import environment_lines, left_out_lines
from launch.config.job import Job
from launch.config.rank_environment import RankEnvironment, Variable, rank_environment
from launch.config.records import torchrun_line_of
from machine.cores.cores import usable_cores
from machine.gpus.devices import Gpu, Placement
from rundir.config import RunConfig, ScriptConfig
from rundir.paths import ROOT, RunDir

CORES = usable_cores().number
ON_CPU = Placement("cpu", 2, "the default on CPU", ())
GPUS = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100", 80 << 30) for i in (3, 1))
ON_GPUS = Placement("cuda", 2, "NUM_GPUS=2", GPUS)
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
RUN = RunDir(Path("/runs/one"))


def config(*, own_trainer: bool = True, **launch: Any) -> RunConfig:
    script = None if own_trainer else ScriptConfig(path="/a.py")
    plain = RunConfig(profile="tiny", script=script)
    return replace(plain, launch=replace(plain.launch, **launch))


def variables(
    environ: Mapping[str, str],
    *,
    placement: Placement = ON_CPU,
    own_trainer: bool = True,
    **launch: Any,
) -> dict[str, Variable]:
    own_config = config(own_trainer=own_trainer, **launch)
    listed = rank_environment(own_config, placement, RUN, environ).variables
    by_name = {variable.name: variable for variable in listed}
    assert len(by_name) == len(listed)
    return by_name


def environment(environ: Mapping[str, str], keep_env: str = "") -> RankEnvironment:
    return rank_environment(config(keep_env=keep_env), ON_CPU, RUN, environ)


@pytest.mark.parametrize("num_ranks", [1, 2, CORES, CORES + 1, 64])
def test_ranks_share_the_cores(num_ranks: int) -> None:
    found = variables({}, placement=Placement("cpu", num_ranks, "", ()))
    for name in (*THREADS, "TORCHINDUCTOR_COMPILE_THREADS", "MAX_JOBS"):
        assert found[name].value == str(max(1, CORES // num_ranks))
    for name in THREADS:
        assert f"for {num_ranks} ranks" in found[name].reason


def test_the_threads_of_a_rank_can_be_set() -> None:
    found = variables({}, threads_per_rank=7)
    assert {found[name].value for name in THREADS} == {"7"}
    assert {found[name].source for name in THREADS} == {"launch.threads_per_rank"}
    assert found["MAX_JOBS"].value == variables({})["MAX_JOBS"].value


@pytest.mark.parametrize(
    "name",
    [
        *THREADS,
        "TORCHINDUCTOR_COMPILE_THREADS",
        "MAX_JOBS",
        "TOKENIZERS_PARALLELISM",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "HF_HUB_OFFLINE",
    ],
)
def test_a_users_value_wins_over_a_default(name: str) -> None:
    assert variables({name: "own"})[name].value == "own"
    assert variables({name: "own"})[name].source == "environment"
    assert f"else {variables({})[name].value}: " in variables({name: "own"})[name].reason
    assert variables({name: ""})[name].value == variables({})[name].value != "own"
    assert variables({name: ""})[name].source == "airlock"


@pytest.mark.parametrize(
    "name", ["AIRLOCK_RUN_DIR", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"]
)
def test_what_airlock_needs_wins_over_a_users_value(name: str) -> None:
    found = variables({name: "own"})[name]
    assert found.value == variables({})[name].value != "own"
    assert found.source == "airlock"


@pytest.mark.parametrize("placement", [ON_CPU, ON_GPUS])
@pytest.mark.parametrize("own_trainer", [True, False])
def test_every_variable_says_where_it_is_from_and_why(
    placement: Placement, own_trainer: bool
) -> None:
    found = variables({}, placement=placement, own_trainer=own_trainer, nccl="low-memory")
    assert all(variable.source and variable.reason for variable in found.values())


def test_ranks_on_gpus_see_theirs_by_uuid_and_ranks_on_cpu_see_none() -> None:
    seen = variables({"CUDA_VISIBLE_DEVICES": "3,1"}, placement=ON_GPUS)
    assert seen["CUDA_VISIBLE_DEVICES"].value == "GPU-3,GPU-1"
    own = {"CUDA_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "0,1"}
    hidden = variables(own)
    assert hidden["CUDA_VISIBLE_DEVICES"].value == ""
    assert hidden["HIP_VISIBLE_DEVICES"].value == "-1"  # to HIP nothing means all
    assert "HIP_VISIBLE_DEVICES" not in variables(own, placement=ON_GPUS)


@pytest.mark.parametrize("own_trainer", [True, False])
def test_a_gpus_number_means_the_same_one_to_cuda_as_to_nvidia_smi(own_trainer: bool) -> None:
    on_gpus = variables({}, placement=ON_GPUS, own_trainer=own_trainer)["CUDA_DEVICE_ORDER"]
    assert (on_gpus.value, on_gpus.source) == ("PCI_BUS_ID", "airlock")
    assert "CUDA_DEVICE_ORDER" not in variables({}, own_trainer=own_trainer)
    own = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert variables(own, placement=ON_GPUS)["CUDA_DEVICE_ORDER"].value == "FASTEST_FIRST"


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


def test_on_gpus_a_stuck_rank_leaves_its_last_collectives_in_the_run_folder() -> None:
    found = variables({}, placement=ON_GPUS)["TORCH_FR_DUMP_TEMP_FILE"]
    assert found.value == f"{RUN.incidents}/nccl_trace_rank_"
    assert "TORCH_FR_DUMP_TEMP_FILE" not in variables({})


def test_nccl_is_left_as_it_is_unless_memory_is_to_be_saved() -> None:
    assert not [name for name in variables({}, placement=ON_GPUS) if name.startswith("NCCL_")]
    assert not [name for name in variables({}, nccl="low-memory") if name.startswith("NCCL_")]
    found = variables({}, placement=ON_GPUS, nccl="low-memory")
    low = {name: one for name, one in found.items() if name.startswith("NCCL_")}
    assert {name: one.value for name, one in low.items()} == {
        "NCCL_MAX_NCHANNELS": "1",
        "NCCL_BUFFSIZE": "1048576",
    }
    assert all("saves" in one.reason and "costs" in one.reason for one in low.values())
    assert {one.source for one in low.values()} == {"launch.nccl"}


def test_what_is_asked_for_by_low_memory_is_no_leftover() -> None:
    old_script = {"NCCL_BUFFSIZE": "1048576", "NCCL_MAX_NCHANNELS": "2"}
    found = rank_environment(config(nccl="low-memory"), ON_GPUS, RUN, old_script)
    assert [one.name for one in found.left_out] == ["NCCL_MAX_NCHANNELS"]
    assert found.of_child(old_script)["NCCL_BUFFSIZE"] == "1048576"
    assert found.of_child(old_script)["NCCL_MAX_NCHANNELS"] == "1"


@pytest.mark.parametrize(
    ("own", "conf", "source"),
    [
        ({}, "expandable_segments:True", "airlock"),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
            "max_split_size_mb:64,expandable_segments:True",
            "environment, airlock",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            "max_split_size_mb:64,expandable_segments:True",
            "environment, airlock",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            "expandable_segments:False",
            "environment",
        ),
    ],
)
def test_ranks_on_gpus_have_one_setting_of_the_allocator_with_the_users_in_it(
    own: dict[str, str], conf: str, source: str
) -> None:
    found = variables(own, placement=ON_GPUS)["PYTORCH_ALLOC_CONF"]
    assert (found.value, found.source) == (conf, source)
    child = rank_environment(config(), ON_GPUS, RUN, own).of_child(own)
    assert child["PYTORCH_ALLOC_CONF"] == conf
    assert "PYTORCH_CUDA_ALLOC_CONF" not in child


def test_the_allocators_old_name_becomes_the_new_one_on_cpu_too_and_nothing_is_added() -> None:
    assert "PYTORCH_ALLOC_CONF" not in variables({})
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert environment(own).of_child(own)["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_script_of_the_users_is_spared_what_only_suits_our_trainer() -> None:
    ours, theirs = (
        variables({}, placement=ON_GPUS),
        variables({}, placement=ON_GPUS, own_trainer=False),
    )
    assert ours.keys() - theirs.keys() == {
        "CUDA_VISIBLE_DEVICES",
        "TOKENIZERS_PARALLELISM",
        "HF_HUB_OFFLINE",
        "PYTORCH_ALLOC_CONF",
    }
    assert theirs.keys() - ours.keys() == {"AIRLOCK_SCRIPT_ENVIRONMENT"}


@pytest.mark.parametrize(
    ("path", "own"),
    [(None, None), (f"{ROOT}", None), (f"{ROOT}:/mine:", "/mine:"), ("/mine", "/mine")],
)
def test_a_script_gets_the_users_own_python_path_back(path: str | None, own: str | None) -> None:
    environ = {} if path is None else {"PYTHONPATH": path}
    restored = variables(environ, own_trainer=False)["AIRLOCK_SCRIPT_ENVIRONMENT"].value
    assert json.loads(restored) == {"PYTHONPATH": own, "PYTHONSAFEPATH": None}


def test_a_script_that_may_be_restarted_gets_a_store_for_each_attempt() -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert name not in variables({}, own_trainer=False)
    assert variables({}, own_trainer=False, max_restarts=1)[name].value == "1"
    assert name not in variables({}, max_restarts=1)


def test_harmful_leftovers_are_not_passed_on_and_everything_else_is() -> None:
    environ = {
        "HOME": "/h",
        "HF_TOKEN": "secret",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "NCCL_SOCKET_IFNAME": "eth0",
        "MY_RANK": "1",
        "RANK": "5",
        "CUDA_LAUNCH_BLOCKING": "1",
    }
    before = dict(environ)
    found = environment(environ)
    child = found.of_child(environ)
    assert {"HOME", "HF_TOKEN", "NCCL_SOCKET_IFNAME", "MY_RANK"} <= set(child)
    assert child["AIRLOCK_RUN_DIR"] == str(RUN.path)
    gone = {one.name: one.value for one in found.left_out}
    assert gone == {
        "RANK": "5",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "CUDA_LAUNCH_BLOCKING": "1",
    }
    assert not gone.keys() & child.keys()
    assert environ == before


def test_a_leftover_that_is_meant_is_passed_on_and_shown_with_the_harm_it_does() -> None:
    environ = {"NCCL_BUFFSIZE": "4096", "CUDA_LAUNCH_BLOCKING": "1"}
    found = environment(environ, keep_env="NCCL_BUFFSIZE, NCCL_P2P_DISABLE")
    assert found.of_child(environ)["NCCL_BUFFSIZE"] == "4096"
    assert [one.name for one in found.left_out] == ["CUDA_LAUNCH_BLOCKING"]
    shown = {one.name: one for one in found.variables}["NCCL_BUFFSIZE"]
    assert (shown.value, shown.source) == ("4096", "environment, launch.keep_env")
    assert shown.reason.startswith("kept, though ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_DEBUG", "INFO"),
    ],
)
def test_what_a_machine_may_hang_without_is_passed_on_with_a_warning(name: str, value: str) -> None:
    environ = {name: value}
    found = environment(environ)
    assert found.of_child(environ)[name] == value
    assert found.left_out == []
    (line,) = left_out_lines(found, "")
    assert line.startswith(f"warning: passed on: {name}={value}: ")
    shown = {one.name: one for one in found.variables}[name]
    assert shown.source == "environment"
    assert shown.reason.startswith("passed on, though ")
    assert left_out_lines(environment(environ, keep_env=name), name) == []  # it is meant


def test_a_variable_is_read_on_one_line_with_its_reason_or_on_two_when_it_is_long() -> None:
    environ = {"PYTHONPATH": "/a/rather/long/path", "MAX_JOBS": "1\n\x1b[2J"}
    found = environment(environ)
    lines = environment_lines(found)
    text = "\n".join(lines)
    for one in found.variables:
        assert f"  {one.name}=" in text
        assert f"{one.source}: {one.reason}" in text
    column = lines[1].index("airlock: ") if "airlock: " in lines[1] else lines[2].index("airlock: ")
    for line in lines:
        assert ": " not in line[:column]
    assert "\x1b" not in text
    assert r"MAX_JOBS='1\n\x1b[2J'" in text


def test_the_report_has_a_line_for_each_reason_and_what_to_type() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "8", "NCCL_NTHREADS": "8", "NCCL_BUFFSIZE": "1"}
    lines = left_out_lines(
        environment(environ | {"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING"),
        "CUDA_LAUNCH_BLOCKING",
    )
    assert len(lines) == 4
    assert lines[0].startswith("not passed on: RANK=0 WORLD_SIZE=8: ")
    assert lines[-1].endswith(
        "--set launch.keep_env=CUDA_LAUNCH_BLOCKING,NCCL_NTHREADS,NCCL_BUFFSIZE"
    )
    assert left_out_lines(environment({"HOME": "/h"}), "") == []


def test_the_torchrun_line_takes_out_what_is_not_passed_on() -> None:
    job = Job(config=config(), sources={}, placement=ON_CPU, resume_from=None)
    line = torchrun_line_of(job, RUN, environment({"NCCL_BUFFSIZE": "1"}))
    assert line.startswith("env -u NCCL_BUFFSIZE AIRLOCK_RUN_DIR=/runs/one ")
    assert " torchrun --nnodes=1 --nproc-per-node=2 " in line
    assert line.endswith(" -m launch.start.rank.rank")


def test_all_of_it_goes_to_the_run_folder() -> None:
    table = json.loads(json.dumps(environment({"NCCL_BUFFSIZE": "1"}).as_json()))
    assert {one["name"] for one in table["variables"]} >= {"OMP_NUM_THREADS", "AIRLOCK_RUN_DIR"}
    assert [set(one) for one in table["not_passed_on"]] == [{"name", "value", "reason"}]
