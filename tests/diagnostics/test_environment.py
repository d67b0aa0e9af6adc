"""The environment rung: what it reports about this machine, and what makes it fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diagnostics.environment import check_numa
from tests import fake_drivers
from tests.diagnosing import diagnose, environment


def test_this_machine_is_shown_and_ready() -> None:
    ended = diagnose("environment")
    assert ended.code == 0, ended.output
    assert ended.finding("versions")["figures"]["torch"]
    assert ended.finding("host")["figures"]["num_cores"] >= 1
    assert "open files" in ended.finding("ulimit")["text"]
    for check in ("shared memory", "disk", "limits", "localhost"):
        assert ended.finding(check)["ok"]


def test_an_old_package_and_a_folder_for_runs_that_cannot_be_written_make_it_red(
    tmp_path: Path,
) -> None:
    info = tmp_path / "peft-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.1.0\n")
    folder = "/proc/runs" if os.geteuid() == 0 else "/usr/runs"  # root may write to the latter
    ended = diagnose("environment", env=environment(tmp_path, AIRLOCK_RUNS_DIR=folder))
    assert ended.code == 4
    versions, disk = (row for row in ended.summary["findings"] if not row["ok"])
    assert versions["check"] == "versions"
    assert "peft>=0.18 (0.1.0 is installed)" in versions["text"]
    assert "-m pip install -r" in versions["do"]
    assert disk["check"] == "disk"
    assert "AIRLOCK_RUNS_DIR=" in disk["do"]


def test_a_run_that_needs_a_gpu_is_red_where_there_is_none() -> None:
    ended = diagnose("environment", "--profile", "32b")
    assert ended.code == 4
    assert "needs an NVIDIA GPU" in ended.finding("gpu")["text"]
    assert ended.finding("localhost")["ok"]  # everything else is still checked


def test_nodes_that_this_process_may_not_run_on_are_told(tmp_path: Path) -> None:
    own = min(os.sched_getaffinity(0))
    for number, cores in enumerate((str(own), "5000-5001,5003", "")):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{cores}\n")
        (node / "meminfo").write_text(
            f"Node {number} MemTotal:       4194304 kB\nNode {number} MemFree:        2097152 kB\n"
        )
    found = check_numa(tmp_path)
    assert found.ok
    assert "3 nodes" in found.text
    assert "2.0 GiB of 4.0 GiB free" in found.text
    assert "cores of node 1" in found.warning  # node 2 has only memory


# GPUs, as reported by a fake driver


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which there seem to be two GPUs."""
    env = environment() | fake_drivers.nvml(tmp_path_factory.mktemp("nvml"))
    del env["CUDA_VISIBLE_DEVICES"]
    return env


def test_sound_gpus_are_shown_with_how_they_are_joined(gpus: dict[str, str]) -> None:
    ended = diagnose("environment", env=gpus | {"NVML_NVLINKS_0": "4", "NVML_NVLINKS_1": "4"})
    health = ended.finding("gpu health")
    assert health["ok"]
    assert health["warning"] == ""
    assert health["text"] == "GPU 0: NVIDIA Pretence, 40 °C, PCIe x16"
    links = ended.finding("gpu links")
    assert (links["text"], links["warning"]) == ("NV4 0-1", "")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SLOWED_1", "64", "its clocks are slowed down: too hot (hardware)"),
        ("SLOWED_1", "136", "hardware slowdown, power brake"),
        ("TEMPERATURE_1", "85", "it is at 85 °C, and slows down from 87 on"),
        ("LANES_1", "4", "PCIe runs with 4 of 16 lanes"),
    ],
)
def test_what_makes_a_gpu_slow_is_a_warning(
    gpus: dict[str, str], variable: str, value: str, says: str
) -> None:
    ended = diagnose("environment", env=gpus | {f"NVML_{variable}": value})
    (second,) = [
        one
        for one in ended.summary["findings"]
        if one["check"] == "gpu health" and one["figures"]["gpu"] == 1
    ]
    assert second["ok"]
    assert says in second["warning"]
    assert "nvidia-smi -q -i 1" in second["do"]


def test_memory_that_cannot_be_mended_makes_it_red(gpus: dict[str, str]) -> None:
    ended = diagnose("environment", env=gpus | {"NVML_REMAP_FAILED_0": "1"})
    assert ended.code == 4
    assert not ended.finding("gpu health")["ok"]
    assert "CUDA_VISIBLE_DEVICES" in ended.finding("gpu health")["do"]


@pytest.mark.parametrize(
    ("variables", "text", "warning"),
    [
        ({"NVML_LEVEL": "10"}, "PIX 0-1", ""),
        ({}, "SYS 0-1", ""),
        ({"NVML_P2P": "1"}, "SYS 0-1", "GPUs 0-1 cannot read each other's memory"),
        # The links end at a switch, which is not at any GPU's address.
        ({"NVML_NVLINKS_0": "18", "NVML_NVLINKS_1": "18", "NVML_PEER_0": "99"}, "NV18 0-1", ""),
        (
            {"NVML_NVLINKS_0": "4", "NVML_NVLINKS_1": "4", "NVML_NVLINKS_UP_1": "3"},
            "NV4 0-1",
            "of GPU 1 NVLink 3 is down",
        ),
        (
            {"NVML_NVLINKS_0": "2", "NVML_NVLINKS_1": "2", "NVML_NVLINKS_UP_1": "0"},
            "NV2 0-1",
            "of GPU 1 NVLink 0, 1 is down",
        ),
    ],
)
def test_how_gpus_are_joined_is_told(
    gpus: dict[str, str], variables: dict[str, str], text: str, warning: str
) -> None:
    links = diagnose("environment", env=gpus | variables).finding("gpu links")
    assert links["text"] == text
    assert links["warning"].startswith(warning)
    assert bool(links["warning"]) == bool(warning)


def test_a_lost_gpu_leaves_the_others_to_be_shown(gpus: dict[str, str]) -> None:
    ended = diagnose("environment", env=gpus | {"NVML_LOST_0": "15"})
    shown = [one for one in ended.summary["findings"] if one["check"] == "gpu health"]
    assert [one["figures"]["gpu"] for one in shown] == [1]


@pytest.mark.gpu
def test_every_gpu_here_is_shown() -> None:
    from machine.gpus.devices import installed_gpus

    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("environment", env=env)
    shown = [one for one in ended.summary["findings"] if one["check"] == "gpu health"]
    assert [one["figures"]["gpu"] for one in shown] == [gpu.index for gpu in installed_gpus()]
    assert all(one["figures"]["temperature_c"] > 0 for one in shown)
    if len(shown) > 1:
        assert ended.finding("gpu links")["figures"]["joined_by"]
