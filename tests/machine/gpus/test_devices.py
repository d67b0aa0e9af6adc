"""The GPUs that a run may use, the number of its ranks, and the errors if there are none."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from machine.gpus.devices import (
    DEFAULT_CPU_RANKS,
    MAX_CPU_RANKS,
    Gpu,
    asked_num_ranks,
    installed_gpus,
    place,
    visible_gpus,
)
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from tests import fake_drivers
from tests.running import python

UUIDS = ("GPU-aaa0", "GPU-aab1", "GPU-b2c2", "GPU-d3e3", "GPU-f404", "GPU-f515", "GPU-c6", "GPU-d7")
NODE = [Gpu(i, uuid, "NVIDIA H100", 80 << 30) for i, uuid in enumerate(UUIDS)]


def config(**launch: Any) -> RunConfig:
    plain = RunConfig(profile="32b")
    return replace(plain, launch=replace(plain.launch, **launch))


@pytest.mark.parametrize(
    ("spec", "indices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("0,1", [0, 1]),
        ("3,0", [3, 0]),
        (" 2 , 5 ", [2, 5]),
        ("GPU-b2c2", [2]),
        ("GPU-b", [2]),
        ("GPU-f5,1", [5, 1]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_visible_gpus_are_those_named_in_their_order(
    spec: str | None, indices: list[int]
) -> None:
    assert [gpu.index for gpu in visible_gpus(NODE, spec)] == indices


@pytest.mark.parametrize(
    ("specs", "says", "do"),
    [
        ("8 0,9 x 0,,1 0, GPU-zzz GPU aaa0 00", "GPUs 0 to 7", "=0,1,2,3,4,5,6,7"),
        ("0,0 1,GPU-aab1 GPU-b,GPU-b2", "names a GPU twice", "name each GPU once"),
        ("GPU-aa", "'GPU-aa' begins the UUIDs of 2 GPUs", "write more of it"),
    ],
)
def test_an_entry_that_does_not_name_one_gpu_is_an_error_that_says_which_there_are(
    specs: str, says: str, do: str
) -> None:
    for spec in specs.split():
        with pytest.raises(UserError, match=says) as raised:
            visible_gpus(NODE, spec)
        assert f"CUDA_VISIBLE_DEVICES={spec}" in str(raised.value)
        assert do in raised.value.do


INSTANCES = [
    Gpu(
        index=2,
        uuid=f"MIG-{letter}1b2",
        old_name=f"MIG-GPU-b2c2/{number}/0",
        name="NVIDIA H100 MIG 3g.40gb",
        memory_bytes=40 << 30,
    )
    for number, letter in ((1, "a"), (2, "b"))
]


@pytest.mark.parametrize(
    ("spec", "uuids"),
    [
        ("MIG-a1b2", ["MIG-a1b2"]),
        ("MIG-b", ["MIG-b1b2"]),
        ("MIG-GPU-b2c2/2/0", ["MIG-b1b2"]),
        ("MIG-a1b2,MIG-GPU-b2c2/2/0", ["MIG-a1b2", "MIG-b1b2"]),
    ],
)
def test_an_instance_of_a_gpu_is_a_device_with_memory_of_its_own(
    spec: str, uuids: list[str]
) -> None:
    for installed in (NODE, []):  # a container may see the instance and not its GPU
        chosen = visible_gpus(installed, spec, lambda: INSTANCES)
        assert [gpu.uuid for gpu in chosen] == uuids
        assert all(gpu.is_instance and gpu.memory_bytes == 40 << 30 for gpu in chosen)
    alone = place(config(), None, chosen[:1])
    assert (alone.device, alone.num_ranks, alone.gpus[0].index) == ("cuda", 1, 2)


@pytest.mark.parametrize("spec", ["MIG-zzz", "MIG-", "MIG-GPU-b2c2/3/0"])
def test_an_entry_that_names_no_instance_is_an_error_that_says_which_there_are(spec: str) -> None:
    says = re.escape("names no instance of a GPU (MIG); there are MIG-a1b2, MIG-b1b2")
    with pytest.raises(UserError, match=says) as raised:
        visible_gpus(NODE, spec, lambda: INSTANCES)
    assert raised.value.do == "CUDA_VISIBLE_DEVICES=MIG-a1b2"
    with pytest.raises(UserError, match="there is none that can be seen"):
        visible_gpus(NODE, spec, list)


@pytest.mark.parametrize("spec", ["MIG-a,MIG-b", "0,MIG-a"])
def test_several_ranks_get_no_instances_for_cuda_shows_a_process_one(spec: str) -> None:
    visible = visible_gpus(NODE, spec, lambda: INSTANCES)
    with pytest.raises(UserError, match="NCCL cannot join them") as raised:
        place(config(), None, visible)
    assert "CUDA_VISIBLE_DEVICES=MIG-a1b2 NUM_GPUS=1 ./start.sh 32b" in raised.value.do
    assert place(config(), (1, "NUM_GPUS=1"), visible).num_ranks == 1


def test_the_driver_is_asked_for_the_instances(tmp_path: Path) -> None:
    """A GPU with one instance stands for that; of one with several, each has to be named."""
    program = """
from machine.gpus.devices import installed_gpus, visible_gpus
for gpu in (*installed_gpus(), *visible_gpus([], "MIG-202"), *visible_gpus([], "MIG-GPU-1/1/0")):
    print(gpu.index, gpu.uuid, gpu.memory_bytes >> 20)
"""
    env = {"NVML_MIG_0": "1", "NVML_PARTS_0": "1", "NVML_TOTAL_MIB_100": "20000"}
    env |= {"NVML_MIG_1": "1", "NVML_PARTS_1": "2", "NVML_TOTAL_MIB_202": "40000"}
    expected = ["0 MIG-100 20000", "1 GPU-1 81559", "1 MIG-202 40000", "1 MIG-200 81559"]
    assert python(program, env=fake_drivers.nvml(tmp_path) | env).splitlines() == expected


def test_every_visible_gpu_gets_a_rank_unless_a_number_is_named() -> None:
    everything = place(config(), None, NODE)
    assert (everything.device, everything.num_ranks) == ("cuda", 8)
    assert everything.source == "every visible GPU"
    four = place(config(), (4, "NUM_GPUS=4"), NODE[::-1])
    assert (four.num_ranks, four.source) == (4, "NUM_GPUS=4")
    assert [gpu.index for gpu in four.gpus] == [7, 6, 5, 4]


def test_a_run_on_cpu_has_two_ranks_unless_a_number_is_named() -> None:
    for visible, device in (([], "auto"), (NODE, "cpu")):
        on_cpu = place(config(needs_gpu=False, device=device), None, visible)
        assert (on_cpu.device, on_cpu.num_ranks) == ("cpu", DEFAULT_CPU_RANKS)
        assert on_cpu.gpus == ()
        assert on_cpu.source == "the default on CPU"
    assert place(config(needs_gpu=False), (3, "--num-gpus"), []).num_ranks == 3


def test_a_run_that_needs_a_gpu_does_not_start_without() -> None:
    for launch in (config(), config(device="cuda", needs_gpu=False)):
        with pytest.raises(UserError, match="needs an NVIDIA GPU") as raised:
            place(launch, None, [])
        assert raised.value.code == ExitCode.PREFLIGHT
    with pytest.raises(UserError, match="this machine has no NVIDIA GPU") as raised:
        visible_gpus([], "0")
    assert raised.value.do.startswith("env -u CUDA_VISIBLE_DEVICES")
    assert visible_gpus([], None) == visible_gpus([], "") == []


@pytest.mark.parametrize(
    ("number", "num_visible", "limit", "says"),
    [
        (9, 8, 8, "8 GPUs are visible"),
        (2, 1, 1, "1 GPU"),
        (0, 8, 1, "asks for 0 ranks"),
        (-1, 8, 1, "asks for -1 ranks"),
        (MAX_CPU_RANKS + 1, 0, MAX_CPU_RANKS, f"CPU runs take 1 to {MAX_CPU_RANKS}"),
        (0, 0, 1, "asks for 0 ranks"),
    ],
)
def test_a_number_of_ranks_that_cannot_be_had_is_answered_with_one_that_can(
    number: int, num_visible: int, limit: int, says: str
) -> None:
    with pytest.raises(UserError, match=says) as raised:
        place(config(needs_gpu=False), (number, "NUM_GPUS"), NODE[:num_visible])
    assert str(raised.value).startswith(f"NUM_GPUS asks for {number} ranks")
    assert f"NUM_GPUS={limit} ./start.sh 32b" in raised.value.do


NUM_GPUS, PRESET = {"NUM_GPUS": "3"}, {"AIRLOCK_PRESET_NUM_GPUS": "4"}
OPTION, VARIABLE = "option --set launch.num_ranks", "environment AIRLOCK_LAUNCH_NUM_RANKS"
PROFILE = "profile 32b.toml"


@pytest.mark.parametrize(
    ("option", "source", "environ", "asked"),
    [
        (1, OPTION, NUM_GPUS | PRESET, (1, "--num-gpus")),
        (None, OPTION, NUM_GPUS | PRESET, (2, "--set launch.num_ranks")),
        (None, VARIABLE, NUM_GPUS | PRESET, (3, "NUM_GPUS=3")),
        (None, PROFILE, NUM_GPUS | PRESET, (3, "NUM_GPUS=3")),
        (None, PROFILE, PRESET, (4, "the start script")),
        (None, PROFILE, {"NUM_GPUS": " "}, (2, PROFILE)),
        (None, VARIABLE, PRESET, (2, VARIABLE)),
        (None, "default", NUM_GPUS, (3, "NUM_GPUS=3")),
        (None, "default", {}, None),
    ],
)
def test_the_number_of_ranks_comes_from_who_has_the_first_word(
    option: int | None, source: str, environ: dict[str, str], asked: tuple[int, str] | None
) -> None:
    set_to = config(num_ranks=0 if source == "default" else 2)
    assert asked_num_ranks(option, set_to, source, environ) == asked


def test_an_option_of_no_ranks_is_taken_at_its_word_and_what_is_no_number_is_an_error() -> None:
    for option in (0, -2):
        asked = asked_num_ranks(option, config(), "default", NUM_GPUS)
        with pytest.raises(UserError, match=f"--num-gpus asks for {option} ranks"):
            place(config(), asked, NODE)
    for name in ("NUM_GPUS", "AIRLOCK_PRESET_NUM_GPUS"):
        for text in ("abc", "2.5", "0x2", "1,2"):
            with pytest.raises(UserError, match=f"{name}='{text}' is not a whole number"):
                asked_num_ranks(None, config(), "default", {name: text})


def test_the_driver_of_this_machine_is_asked_whether_there_is_one_or_not() -> None:
    gpus = installed_gpus()
    assert gpus == installed_gpus()  # NVML can be queried again
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    if shutil.which("nvidia-smi") is None:
        assert gpus == []


@pytest.mark.gpu
def test_the_gpus_are_those_that_nvidia_smi_lists() -> None:
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [f"{gpu.index}, {gpu.uuid}, {gpu.name}" for gpu in installed_gpus()] == lines
    assert all(gpu.memory_bytes > 1 << 30 for gpu in installed_gpus())
