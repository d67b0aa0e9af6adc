"""The variables of the ranks: the user's own win where they may, leftovers are not passed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.environment_text import environment_lines, left_out_lines
from launch.config.rank_environment import RankEnvironment, Variable, rank_environment
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
    environ: Mapping[str, str], *, placement: Placement = ON_CPU, **settings: Any
) -> dict[str, Variable]:
    listed = rank_environment(config(**settings), placement, RUN, environ).variables
    by_name = {variable.name: variable for variable in listed}
    assert len(by_name) == len(listed)
    assert all(variable.source and variable.reason for variable in listed)
    return by_name


def environment(environ: Mapping[str, str], keep_env: str = "") -> RankEnvironment:
    return rank_environment(config(keep_env=keep_env), ON_CPU, RUN, environ)


def named(environment: RankEnvironment, name: str) -> Variable:
    return {variable.name: variable for variable in environment.variables}[name]


@pytest.mark.parametrize("num_ranks", [1, 2, CORES, CORES + 1, 64])
def test_ranks_share_the_cores(num_ranks: int) -> None:
    shared = variables({}, placement=Placement("cpu", num_ranks, "", ()))
    for name in (*THREADS, "TORCHINDUCTOR_COMPILE_THREADS", "MAX_JOBS"):
        assert shared[name].value == str(max(1, CORES // num_ranks))
    for name in THREADS:
        assert f"for {num_ranks} ranks" in shared[name].reason


def test_the_threads_of_a_rank_can_be_set() -> None:
    set_ = variables({}, threads_per_rank=7)
    assert {set_[name].value for name in THREADS} == {"7"}
    assert {set_[name].source for name in THREADS} == {"launch.threads_per_rank"}
    assert set_["MAX_JOBS"].value == variables({})["MAX_JOBS"].value


@pytest.mark.parametrize(
    "name",
    [
        *(*THREADS, "TORCHINDUCTOR_COMPILE_THREADS", "MAX_JOBS", "TOKENIZERS_PARALLELISM"),
        *("PYTORCH_NVML_BASED_CUDA_CHECK", "HF_HUB_OFFLINE"),
    ],
)
def test_a_users_value_wins_over_a_default(name: str) -> None:
    default, own, empty = (variables(environ)[name] for environ in ({}, {name: "own"}, {name: ""}))
    assert (own.value, own.source) == ("own", "environment")
    assert f"else {default.value}: " in own.reason
    assert (empty.value, empty.source) == (default.value, "airlock")


@pytest.mark.parametrize(
    "name", ["AIRLOCK_RUN_DIR", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"]
)
def test_what_airlock_needs_wins_over_a_users_value(name: str) -> None:
    needed = variables({name: "own"})[name]
    assert needed.value == variables({})[name].value != "own"
    assert needed.source == "airlock"


def test_ranks_on_gpus_see_theirs_by_uuid_and_ranks_on_cpu_see_none() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "0,1"}
    visible, hidden = variables(own, placement=ON_GPUS), variables(own)
    assert visible["CUDA_VISIBLE_DEVICES"].value == "GPU-3,GPU-1"
    assert "HIP_VISIBLE_DEVICES" not in visible
    assert hidden["CUDA_VISIBLE_DEVICES"].value == ""
    assert hidden["HIP_VISIBLE_DEVICES"].value == "-1"  # to HIP nothing means all


@pytest.mark.parametrize("own_trainer", [True, False])
def test_a_gpus_number_means_the_same_one_to_cuda_as_to_nvidia_smi(own_trainer: bool) -> None:
    on_gpus = variables({}, placement=ON_GPUS, own_trainer=own_trainer)["CUDA_DEVICE_ORDER"]
    assert (on_gpus.value, on_gpus.source) == ("PCI_BUS_ID", "airlock")
    assert "CUDA_DEVICE_ORDER" not in variables({}, own_trainer=own_trainer)
    own = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert variables(own, placement=ON_GPUS)["CUDA_DEVICE_ORDER"].value == "FASTEST_FIRST"


@pytest.mark.parametrize(
    ("own", "whole", "of_script"),
    [
        (None, [str(ROOT)], None),
        ("", [str(ROOT)], None),
        (str(ROOT), [str(ROOT)], None),
        ("/a:/b", [str(ROOT), "/a", "/b"], "/a:/b"),
        (f"/a:{ROOT}:/b", [str(ROOT), "/a", "/b"], f"/a:{ROOT}:/b"),
        (f"{ROOT}:/mine:", [str(ROOT), "/mine"], "/mine:"),
        (":/a::", [str(ROOT), "/a"], ":/a::"),  # an empty entry would be the working directory
    ],
)
def test_the_clone_comes_first_on_the_path_and_a_script_gets_the_users_own_back(
    own: str | None, whole: list[str], of_script: str | None
) -> None:
    environ = {} if own is None else {"PYTHONPATH": own}
    assert variables(environ)["PYTHONPATH"].value.split(":") == whole
    restored = variables(environ, own_trainer=False)["AIRLOCK_SCRIPT_ENVIRONMENT"].value
    assert json.loads(restored) == {"PYTHONPATH": of_script, "PYTHONSAFEPATH": None}


def test_on_gpus_a_stuck_rank_leaves_its_last_collectives_in_the_run_folder() -> None:
    trace = variables({}, placement=ON_GPUS)["TORCH_FR_DUMP_TEMP_FILE"]
    assert trace.value == f"{RUN.incidents}/nccl_trace_rank_"
    assert "TORCH_FR_DUMP_TEMP_FILE" not in variables({})


def test_nccl_is_left_as_it_is_unless_memory_is_to_be_saved() -> None:
    for untouched in (variables({}, placement=ON_GPUS), variables({}, nccl="low-memory")):
        assert not [name for name in untouched if name.startswith("NCCL_")]
    saving = variables({}, placement=ON_GPUS, nccl="low-memory")
    low = [variable for name, variable in saving.items() if name.startswith("NCCL_")]
    assert {variable.name: variable.value for variable in low} == {
        "NCCL_MAX_NCHANNELS": "1",
        "NCCL_BUFFSIZE": "1048576",
    }
    assert all("saves" in variable.reason and "costs" in variable.reason for variable in low)
    assert {variable.source for variable in low} == {"launch.nccl"}
    old_script = {"NCCL_BUFFSIZE": "1048576", "NCCL_MAX_NCHANNELS": "2"}
    asked = rank_environment(config(nccl="low-memory"), ON_GPUS, RUN, old_script)
    assert [leftover.name for leftover in asked.left_out] == ["NCCL_MAX_NCHANNELS"]
    assert asked.of_child(old_script)["NCCL_BUFFSIZE"] == "1048576"
    assert asked.of_child(old_script)["NCCL_MAX_NCHANNELS"] == "1"


NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SPLIT, EXPANDABLE = "max_split_size_mb:64", "expandable_segments:True"


@pytest.mark.parametrize(
    ("own", "conf", "source"),
    [
        ({}, EXPANDABLE, "airlock"),
        ({NEW: SPLIT}, f"{SPLIT},{EXPANDABLE}", "environment, airlock"),
        ({OLD: SPLIT}, f"{SPLIT},{EXPANDABLE}", "environment, airlock"),
        ({NEW: "expandable_segments:False"}, "expandable_segments:False", "environment"),
    ],
)
def test_ranks_on_gpus_have_one_setting_of_the_allocator_with_the_users_in_it(
    own: dict[str, str], conf: str, source: str
) -> None:
    on_gpus = rank_environment(config(), ON_GPUS, RUN, own)
    assert (named(on_gpus, NEW).value, named(on_gpus, NEW).source) == (conf, source)
    child = on_gpus.of_child(own)
    assert (child[NEW], OLD in child) == (conf, False)


def test_the_allocators_old_name_becomes_the_new_one_on_cpu_too_and_nothing_is_added() -> None:
    assert NEW not in variables({})
    assert environment({OLD: SPLIT}).of_child({OLD: SPLIT})[NEW] == SPLIT


def test_a_script_of_the_users_is_spared_what_only_suits_our_trainer() -> None:
    ours = variables({}, placement=ON_GPUS).keys()
    theirs = variables({}, placement=ON_GPUS, own_trainer=False).keys()
    of_trainer = {"CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", NEW}
    assert ours - theirs == of_trainer
    assert theirs - ours == {"AIRLOCK_SCRIPT_ENVIRONMENT"}


def test_a_script_that_may_be_restarted_gets_a_store_for_each_attempt() -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert name not in variables({}, own_trainer=False)
    assert variables({}, own_trainer=False, max_restarts=1)[name].value == "1"
    assert name not in variables({}, max_restarts=1)


def test_harmful_leftovers_are_not_passed_on_and_everything_else_is() -> None:
    harmful = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "RANK": "5", "CUDA_LAUNCH_BLOCKING": "1"}
    others = {"HOME": "/h", "HF_TOKEN": "x", "NCCL_SOCKET_IFNAME": "eth0", "MY_RANK": "1"}
    environ = harmful | others
    cleaned = environment(environ)
    child = cleaned.of_child(environ)
    assert others.items() <= child.items()
    assert child["AIRLOCK_RUN_DIR"] == str(RUN.path)
    assert {leftover.name: leftover.value for leftover in cleaned.left_out} == harmful
    assert not harmful.keys() & child.keys()
    assert environ == harmful | others


def test_a_leftover_that_is_meant_is_passed_on_and_shown_with_the_harm_it_does() -> None:
    environ = {"NCCL_BUFFSIZE": "4096", "CUDA_LAUNCH_BLOCKING": "1"}
    kept = environment(environ, keep_env="NCCL_BUFFSIZE, NCCL_P2P_DISABLE")
    assert kept.of_child(environ)["NCCL_BUFFSIZE"] == "4096"
    assert [leftover.name for leftover in kept.left_out] == ["CUDA_LAUNCH_BLOCKING"]
    shown = named(kept, "NCCL_BUFFSIZE")
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
    passed_on = environment(environ)
    assert passed_on.of_child(environ)[name] == value
    assert passed_on.left_out == []
    (line,) = left_out_lines(passed_on, "")
    assert line.startswith(f"warning: passed on: {name}={value}: ")
    assert named(passed_on, name).source == "environment"
    assert named(passed_on, name).reason.startswith("passed on, though ")
    assert left_out_lines(environment(environ, keep_env=name), name) == []  # it is meant


def test_a_variable_is_read_on_one_line_with_its_reason_or_on_two_when_it_is_long() -> None:
    environ = {"PYTHONPATH": "/a/rather/long/path", "MAX_JOBS": "1\n\x1b[2J"}
    shown = environment(environ)
    lines = environment_lines(shown)
    text = "\n".join(lines)
    for variable in shown.variables:
        assert f"  {variable.name}=" in text
        assert f"{variable.source}: {variable.reason}" in text
    column = lines[1].index("airlock: ") if "airlock: " in lines[1] else lines[2].index("airlock: ")
    for line in lines:
        assert ": " not in line[:column]
    assert "\x1b" not in text
    assert r"MAX_JOBS='1\n\x1b[2J'" in text


def test_the_report_has_a_line_for_each_reason_and_what_to_type() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "8", "NCCL_NTHREADS": "8", "NCCL_BUFFSIZE": "1"}
    kept = "CUDA_LAUNCH_BLOCKING"
    lines = left_out_lines(environment(environ | {kept: "1"}, kept), kept)
    assert len(lines) == 4
    assert lines[0].startswith("not passed on: RANK=0 WORLD_SIZE=8: ")
    assert lines[-1].endswith(f"--set launch.keep_env={kept},NCCL_NTHREADS,NCCL_BUFFSIZE")
    assert left_out_lines(environment({"HOME": "/h"}), "") == []
