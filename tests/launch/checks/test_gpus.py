"""GPUs that do not respond, are taken, or cannot be used as configured.

The driver is a fake behind the real pynvml; the parts of it that are real are tested at the end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from machine.gpus import nvml as real_nvml
from tests.conftest import HAS_GPU
from tests.launch.checks.conftest import Machine, Row

pretended = pytest.mark.skipif(HAS_GPU, reason="here the real ones are tested")


def gpu_rows(machine: Machine, nvml: dict[str, str], *args: str, **env: str) -> list[Row]:
    return machine.rows(*args, profile="32b", env=nvml | env)["gpu"]


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a real process that holds a fake GPU."""
    with subprocess.Popen([sys.executable, "-c", "input()", "hold"], stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


@pretended
def test_a_gpu_too_full_for_the_weights_is_an_error_that_names_who_holds_it(
    machine: Machine, nvml: dict[str, str], holder: subprocess.Popen[bytes]
) -> None:
    taken = {"NVML_FREE_MIB_1": "41000", "NVML_PID_1": str(holder.pid)}
    (row,) = gpu_rows(machine, nvml, **taken)
    assert not row["ok"]
    assert row["text"].startswith("GPU 1 (NVIDIA Pretence): 41,000 of 81,559 MiB are free, and the")
    assert "the weights alone take 62,492; held by pid" in row["text"]
    assert f"pid {holder.pid} (" in row["text"]
    assert "-c input() hold, 0:0" in row["text"]
    assert row["text"].endswith("with 40,000 MiB")
    assert row["do"].startswith(f"kill {holder.pid}   # yours")
    # This run does not need it, so it is not reported.
    assert gpu_rows(machine, nvml, "--num-gpus", "1", **taken)[0]["ok"]


@pretended
def test_a_gpu_that_a_run_of_ours_holds_is_answered_with_how_to_stop_that(
    machine: Machine, nvml: dict[str, str]
) -> None:
    run = f"{machine.environ['AIRLOCK_RUNS_DIR']}/20260101-000000-tiny-abcd"
    with subprocess.Popen(["sleep", "60"], env={"AIRLOCK_RUN_DIR": run}) as left:
        taken = {"NVML_FREE_MIB_0": "41000", "NVML_PID_0": str(left.pid)}
        (row,) = gpu_rows(machine, nvml, **taken)
        left.kill()
    assert "run 20260101-000000-tiny-abcd) with" in row["text"]
    assert row["do"] == "./airlock stop 20260101-000000-tiny-abcd"


_ONE = "NUM_GPUS=1"
_PARTS = "NVML_MIG_0=1 NVML_PARTS_0=2 NVML_TOTAL_MIB_102=40000 CUDA_VISIBLE_DEVICES=MIG-102"
_TWO_PARTS = "NVML_MIG_0=1 NVML_PARTS_0=2 CUDA_VISIBLE_DEVICES=MIG-100,MIG-102"
_USED = "NVML_FREE_MIB_0=71559"
# What the driver is to say; the level of the first finding, what is in its text and in its advice.
STATES = [
    ("", "ok", "2 GPUs, at least 81,000 MiB free on each", ""),
    ("NVML_FREE_MIB_0=81000 NVML_USED_MIB_0=100", "ok", "2 GPUs", ""),
    (_USED, "warning", "held by no process that can be seen from here", "fuser"),
    (
        f"{_USED} NVML_PID_0=4000000 NVML_PID_MIB_0=9000",
        "warning",
        "71,559 of 81,559 MiB are free; held by pid 4000000 (not to be seen",
        "ask its owner, or leave out GPU 0",
    ),
    ("NVML_MODE_1=2", "error", "compute mode PROHIBITED", "nvidia-smi -i 1 -c DEFAULT"),
    ("NVML_MODE_0=3 NVML_PID_0=1", "error", "EXCLUSIVE_PROCESS, and process 1 is", "-i 0 -c DEF"),
    ("NVML_MODE_0=3", "ok", "2 GPUs", ""),  # exclusive, and unused
    ("NVML_MIG_0=1", "error", "cut into parts (MIG)", "nvidia-smi -i 0 -mig 0"),
    # An instance is judged by its own memory, and one rank alone can live with it.
    (f"{_ONE} NVML_MIG_0=1", "warning", "a rank gets one of them", "CUDA_VISIBLE_DEVICES=MIG-…"),
    (f"{_PARTS} NVML_FREE_MIB_102=39000", "ok", "1 GPUs, at least 39,000 MiB free", ""),
    (f"{_PARTS} NVML_FREE_MIB_102=20000", "warning", "20,000 of 40,000 MiB are free", ""),
    (_TWO_PARTS, "error", "NCCL cannot join them", "CUDA_VISIBLE_DEVICES=MIG-100 NUM_GPUS=1"),
    (
        "NVML_ECC_1=3 NVML_PENDING_1=1",
        "warning",
        "GPU 1 has had 3 uncorrectable memory errors and waits for a reset",
        "--gpu-reset -i 1",
    ),
    ("NVML_LOST_0=15", "warning", "GPU 0 does not answer, and is left out: ", "--gpu-reset"),
    ("NUM_GPUS=2 NVML_COUNT=0", "error", "32b needs an NVIDIA GPU and none is visible", ""),
    (
        "NVML_INIT=18",
        "error",
        "needs an NVIDIA GPU and the NVIDIA driver in the kernel is older than its libraries",
        "sudo reboot",
    ),
]


@pretended
@pytest.mark.parametrize(("said", "level", "text", "do"), STATES)
def test_a_gpu_is_judged_by_what_its_driver_says(
    machine: Machine, nvml: dict[str, str], said: str, level: str, text: str, do: str
) -> None:
    row = gpu_rows(machine, nvml, **dict(part.split("=") for part in said.split()))[0]
    assert row["ok"] == (level != "error")
    assert bool(row["warning"]) == (level == "warning")
    assert text in (row["warning"] or row["text"])
    assert do in row["do"]


@pretended
def test_a_run_that_can_do_without_gpus_goes_on_and_says_so(
    machine: Machine, nvml: dict[str, str]
) -> None:
    (row,) = machine.rows(env=nvml | {"NVML_INIT": "18"})["driver"]
    assert row["warning"].endswith("; so this run is on CPU")


@pretended
def test_a_driver_that_hangs_costs_a_warning_and_no_more(
    machine: Machine, nvml: dict[str, str]
) -> None:
    # The first query, for the list of GPUs, waits a second; the checks would wait another three.
    slow = {"NVML_SLEEP_S": "3"}
    found = machine.rows(profile="32b", env=nvml | slow)
    assert "has not answered within 2 s" in found["gpu"][0]["warning"]
    assert "has not answered within 2 s" in found["driver"][0]["warning"]
    assert found["clock"][0]["warning"] == ""


@pytest.mark.gpu
def test_the_real_driver_tells_all_that_the_checks_ask() -> None:
    state = real_nvml.driver_state()
    assert state is not None
    assert state.cuda is not None
    assert state.cuda >= (12, 0)
    assert real_nvml.driver_fault() is None
    for gpu in state.gpus:
        assert gpu.fault == ""
        assert 0 < gpu.free_bytes <= gpu.total_bytes
        assert gpu.capability >= (5, 0)


@pytest.mark.gpu
def test_a_process_that_really_holds_a_gpu_is_named(machine: Machine) -> None:
    hold = "import torch; kept = torch.empty(1 << 30, device='cuda'); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        rows = machine.rows()["gpu"]
        holder.kill()
    # In a container the driver may name no process, or use the host's pid.
    assert any("MiB are free" in row["warning"] and "held by" in row["warning"] for row in rows)
