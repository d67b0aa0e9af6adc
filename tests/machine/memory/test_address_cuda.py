"""The limit on a rank's address space where there are GPUs: CUDA is started under it beforehand.

The driver is a stand-in that reserves addresses for real; a gpu-marked test has the true one.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.address_limit import rank_limit
from machine.gpus.devices import installed_gpus
from machine.memory import address_space
from machine.memory.address_probe import LimitTrial, probe
from machine.memory.address_space import predict
from machine.memory.host_memory import Available, HostMemory, machine_memory_bytes
from rundir.config import LimitsConfig
from rundir.errors import ExitCode, UserError
from rundir.units import GIB
from tests import fake_drivers
from tests.conftest import ROOT
from tests.running import python

ON_GPU = predict([], "2", [80 * GIB])
POOLS_GIB = 3 * 90


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return os.environ | fake_drivers.cuda(tmp_path)


def test_a_predicted_limit_is_used_when_cuda_starts_with_it(env: dict[str, str]) -> None:
    limit = rank_limit(LimitsConfig(), ON_GPU, env | {"CUDA_INIT_GIB": "100"})
    assert (limit.value, limit.source) == (str(ON_GPU.most_bytes), "predicted")
    started = re.search(r"CUDA starts with it, in ([\d.]+) GiB", limit.reason)
    assert started is not None
    assert float(started[1]) * GIB > ON_GPU.in_use_bytes + (100 + POOLS_GIB) * GIB


def test_a_predicted_limit_that_cuda_does_not_start_with_is_none_and_says_why(
    env: dict[str, str],
) -> None:
    """The driver of some machine may reserve far more than any known one does."""
    limit = rank_limit(LimitsConfig(), ON_GPU, env | {"CUDA_INIT_GIB": "4000"})
    assert (limit.value, limit.source) == ("0", "predicted")
    assert "cuInit: CUDA_ERROR_OUT_OF_MEMORY (2)" in limit.reason
    assert re.search(r"without a limit it started, in 4\d\d\d\.\d GiB", limit.reason)


def test_the_pools_of_torchs_allocator_are_reserved_in_the_trial(env: dict[str, str]) -> None:
    little = env | {"CUDA_INIT_GIB": "1"}
    for num_pools in (1, 3):
        needed = 8 + 90 * num_pools
        trial = LimitTrial(
            limit_bytes=needed * GIB, reserved_bytes=GIB, num_threads=2, num_pools=num_pools
        )
        assert probe(trial, little).failure is None
        failed = probe(replace(trial, limit_bytes=(needed - 20) * GIB), little)
        assert failed.in_cuda
        assert "cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY" in (failed.failure or "")


def test_a_users_limit_that_cuda_does_not_start_with_is_refused_and_the_one_named_will_do(
    env: dict[str, str],
) -> None:
    own = env | {"CUDA_INIT_GIB": "500"}
    with pytest.raises(UserError, match=r"no rank starts with 300\.00 GiB") as caught:
        rank_limit(LimitsConfig(rlimit_as_gib=300), ON_GPU, own)
    assert caught.value.code == ExitCode.PREFLIGHT
    assert "cuInit: CUDA_ERROR_OUT_OF_MEMORY" in str(caught.value)
    named = re.search(r"AIRLOCK_RLIMIT_AS_GIB=(\d+)", caught.value.do)
    assert named is not None
    assert int(named[1]) > 500 + POOLS_GIB
    chosen = rank_limit(LimitsConfig(rlimit_as_gib=int(named[1])), ON_GPU, own)
    assert chosen.value == str(int(named[1]) * GIB)


@pytest.mark.parametrize(
    ("limits", "driver", "value", "reason"),
    [
        (
            LimitsConfig(rlimit_as_gib=2000),
            {"CUDA_INIT": "100"},
            str(2000 * GIB),
            r"CUDA does not start without a limit either: .*CUDA_ERROR_NO_DEVICE \(100\)",
        ),
        (LimitsConfig(), {"CUDA_INIT": "100"}, "0", "without a limit it failed too"),
        (LimitsConfig(), {"CUDA_CRASH": "1"}, "0", "signal 6 ended it"),
        (LimitsConfig(), {"CUDA_COUNT": "0"}, str(ON_GPU.most_bytes), "libcuda sees no GPU$"),
    ],
)
def test_what_a_driver_that_fails_or_sees_no_gpu_means_for_the_limit_is_said(
    env: dict[str, str], limits: LimitsConfig, driver: dict[str, str], value: str, reason: str
) -> None:
    limit = rank_limit(limits, ON_GPU, env | driver)
    assert limit.value == value
    assert re.search(reason, limit.reason)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a driver here")
def test_without_libcuda_that_part_is_left_out_and_said() -> None:
    limit = rank_limit(LimitsConfig(), ON_GPU, dict(os.environ))
    assert limit.value == str(ON_GPU.most_bytes)
    assert "not tried with CUDA: libcuda.so.1 cannot be loaded" in limit.reason


def test_on_cpu_the_driver_is_left_alone(env: dict[str, str]) -> None:
    on_cpu = predict([], "2", [])
    assert rank_limit(LimitsConfig(), on_cpu, env | {"CUDA_CRASH": "1"}).value != "0"


def test_a_ulimit_that_cuda_does_not_start_with_is_refused(env: dict[str, str]) -> None:
    program = (
        "from launch.config.address_limit import *\n"
        "from machine.memory.address_space import predict\n"
        "try: print(rank_limit(LimitsConfig(), predict([], '2', [80 << 30])))\n"
        "except UserError as error: print(error, error.do)"
    )
    limited = ("sh", "-c", f'ulimit -S -v {300 << 20}; exec "$0" "$@"')
    own = env | {"CUDA_INIT_GIB": "500", "PYTHONPATH": str(ROOT)}
    text = python(program, env=own, within=limited)
    assert "ulimit -v: no rank starts with 300.00 GiB" in text
    named = re.search(r"ulimit -v (\d+), or more", text)
    assert named is not None
    assert int(named[1]) > (500 + POOLS_GIB) << 20


def test_the_driver_is_counted_by_the_machines_memory_whatever_the_cgroup_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = Available(available_bytes=GIB, total_bytes=4 * GIB, where="the cgroup /x")
    monkeypatch.setattr(HostMemory, "now", lambda _self: few)
    monkeypatch.setattr(address_space, "machine_memory_bytes", lambda: 2000 * GIB)
    in_container = predict([], "2", [80 * GIB] * 2)
    (driver,) = (part for part in in_container.parts if "driver" in part.what)
    assert driver.most_bytes >= (2000 + 160) * GIB
    (pools,) = (part for part in in_container.parts if "pools" in part.what)
    assert pools.most_bytes == 3 * 2 * 90 * GIB


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machines_memory_is_the_largest_of_what_the_kernel_says(tmp_path: Path) -> None:
    """A container's file system may show its own limit in /proc/meminfo (lxcfs)."""
    assert machine_memory_bytes(tmp_path) == 0
    write(tmp_path / "proc/meminfo", "MemTotal: 4194304 kB\nSwapTotal: 1048576 kB\n")
    assert machine_memory_bytes(tmp_path) == 5 * GIB
    for node in (0, 1):
        meminfo = f"Node {node} MemTotal:  {8 << 20} kB\nNode {node} MemFree: 1 kB\n"
        write(tmp_path / f"sys/devices/system/node/node{node}/meminfo", meminfo)
    assert machine_memory_bytes(tmp_path) == 17 * GIB
    blocks = tmp_path / "sys/devices/system/memory"
    write(blocks / "block_size_bytes", "40000000\n")
    for number in range(40):
        write(blocks / f"memory{number}/state", "offline\n" if number > 31 else "online\n")
    assert machine_memory_bytes(tmp_path) == 33 * GIB
    assert machine_memory_bytes() >= HostMemory().now().total_bytes


@pytest.mark.gpu
def test_the_real_driver_starts_under_the_predicted_limit() -> None:
    predicted = predict([], "2", [gpu.memory_bytes for gpu in installed_gpus()])
    limit = rank_limit(LimitsConfig(), predicted)
    assert limit.value == str(predicted.most_bytes), limit.reason
    assert "CUDA starts with it" in limit.reason


@pytest.mark.gpu
def test_the_real_driver_under_too_low_a_limit_is_recognised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        pytest.skip("a hard limit is set")
    predicted = predict([], "2", [gpu.memory_bytes for gpu in installed_gpus()])
    with pytest.raises(UserError, match="no rank starts with 8"):
        rank_limit(LimitsConfig(rlimit_as_gib=8), predicted)
