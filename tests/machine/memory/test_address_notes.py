"""What a rank says of CUDA's own out-of-memory errors: its address space, or a full GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.start.rank.reporter import last_words
from machine.memory.limits import is_out_of_memory
from rundir.exit_codes import ExitCode
from tests import fake_nvml
from tests.conftest import ROOT

COUNTING = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
    "calling NumCudaDevices() that might have already set an error? Error 2: out of memory"
)
AT_INIT = [
    COUNTING,
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
]

PROGRAM = """
import resource
from machine.memory.limits import apply_limits
from launch.start.rank.reporter import last_words
from rundir.config import LimitsConfig
apply_limits(LimitsConfig(rlimit_as_gib={gib}))
print(last_words(RuntimeError("CUDA driver error: out of memory"))["traceback"])
"""


@pytest.mark.parametrize("text", AT_INIT)
def test_cudas_own_error_is_out_of_memory(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert last_words(RuntimeError(text))["exit_code"] == ExitCode.OUT_OF_MEMORY


def test_another_error_of_the_driver_is_not() -> None:
    text = "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported driver"
    assert not is_out_of_memory(RuntimeError(text))


def words(folder: Path, gib: float, env: dict[str, str]) -> str:
    """Return the last words of a process with such a limit and such GPUs."""
    fake = fake_nvml.build(folder)
    return subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(gib=gib)],
        env=os.environ | fake | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


SECOND = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}


def test_under_a_limit_the_address_space_is_named(tmp_path: Path) -> None:
    told = words(tmp_path, 16, SECOND)
    assert "RLIMIT_AS of this process is 16.0 GiB" in told
    assert "AIRLOCK_RLIMIT_AS_GIB=0 removes the limit; CUDA reserves more" in told


def test_without_a_limit_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert "RLIMIT_AS" not in words(tmp_path, 0, SECOND)


def test_a_full_gpu_is_named_as_such_and_a_neighbours_is_not(tmp_path: Path) -> None:
    full = words(tmp_path, 16, SECOND | {"NVML_FREE_MIB_1": "310"})
    assert "the GPU is full: 310 MiB are free" in full
    assert "RLIMIT_AS" not in full
    assert "RLIMIT_AS" in words(tmp_path, 16, SECOND | {"NVML_FREE_MIB_0": "310"})


def test_a_gpu_that_cannot_be_found_is_not_called_full(tmp_path: Path) -> None:
    assert "RLIMIT_AS" in words(tmp_path, 16, {"LOCAL_RANK": "5", "NVML_FREE_MIB_1": "310"})
