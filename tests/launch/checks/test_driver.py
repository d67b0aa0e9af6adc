"""A torch build that the driver or the GPUs do not support, and one for CPU only."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.checks.gpus import judge_driver
from machine.gpus.nvml import DriverState, GpuState
from machine.gpus.torch_build import TorchBuild, torch_build
from tests.conftest import HAS_GPU, ROOT
from tests.launch.checks.conftest import Machine

pretended = pytest.mark.skipif(HAS_GPU, reason="here the real ones are tested")


def installed(
    folder: Path, cuda: str | None, version: str = "2.13.0", hip: str | None = None
) -> dict[str, str]:
    """Return an environment with such a torch build, which ends any process that imports it."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    lines = (
        "from typing import Optional",
        f"__version__ = {version!r}",
        f"cuda: Optional[str] = {cuda!r}",
        f"hip: Optional[str] = {hip!r}",
    )
    (package / "version.py").write_text("\n".join(lines))
    return {"PYTHONPATH": f"{ROOT}:{package.parent}"}


_CPU = "torch 2.13.0+cpu is built for CPU only; the run is to be on 2 NVIDIA GPUs, and the driver "
_ROCM = ("2.13.0+rocm7.1", "7.1.25424")
# The build's CUDA, version and ROCm; libcuda's version; how the text begins, and the advice.
BUILDS: list[tuple[str | None, tuple[str, str | None], str, str, str]] = [
    (
        None,
        ("2.13.0+cpu", None),
        "13000",
        f"{_CPU}580.95 serves CUDA 13.0",
        " -m pip install torch==2.13.0+cu130 --extra-index-url https://",
    ),
    (None, _ROCM, "13000", "torch 2.13.0+rocm7.1 is built for ROCm 7.1.25424; the run is to", ""),
    (
        "13.0",
        ("2.13.0", None),
        "12080",
        "torch 2.13.0 is built for CUDA 13.0; the driver 580.95 serves CUDA 12.8: it is too old",
        "a driver from 580 on, or: ",
    ),
    (
        "13.0",
        ("2.13.0", None),
        "0",
        "the driver is 580.95, but its libcuda.so.1 is not here",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    # Another version of the same major one, or a newer driver.
    ("12.8", ("2.13.0", None), "12020", "torch 2.13.0 is built for CUDA 12.8; the driver", ""),
    ("12.6", ("2.13.0", None), "13000", "torch 2.13.0 is built for CUDA 12.6; the driver", ""),
    ("13.0", ("2.13.0", None), "13000", "torch 2.13.0 is built for CUDA 13.0; the driver", ""),
]


@pretended
@pytest.mark.parametrize("case", BUILDS)
def test_a_build_that_the_driver_cannot_serve_is_an_error_with_the_install_command(
    machine: Machine,
    nvml: dict[str, str],
    tmp_path: Path,
    case: tuple[str | None, tuple[str, str | None], str, str, str],
) -> None:
    cuda, built, served, text, do = case
    env = nvml | installed(tmp_path, cuda, *built) | {"NVML_CUDA": served}
    (row,) = machine.rows(profile="32b", env=env)["driver"]
    assert row["ok"] == (not do and built != _ROCM)
    assert row["text"].startswith(text)
    assert do in row["do"]


@pretended
def test_a_build_for_amd_gpus_is_told_what_is_missing(
    machine: Machine, nvml: dict[str, str], tmp_path: Path
) -> None:
    no_gpus = nvml | installed(tmp_path, None, *_ROCM) | {"NVML_COUNT": "0"}
    (row,) = machine.rows(profile="32b", env=no_gpus)["gpu"]
    assert not row["ok"]
    assert "32b needs an NVIDIA GPU and none is visible; torch 2.13.0+rocm7.1 is" in row["text"]
    assert "Airlock knows of no AMD GPU" in row["text"]
    assert "./start.sh my_train.py" in row["do"]
    (row,) = machine.rows(profile="tiny", env=no_gpus)["driver"]
    assert row["ok"]
    assert row["warning"].endswith("so this run is on CPU")


@pytest.mark.parametrize(
    ("build", "capability", "wanted"),
    [
        ((12, 6), (10, 0), "torch==2.13.0+cu130"),
        ((12, 6), (12, 0), "torch==2.13.0+cu130"),
        ((13, 0), (7, 0), "torch==2.13.0+cu126"),
        ((12, 8), (10, 0), ""),
        ((13, 0), (7, 5), ""),
        ((12, 6), (7, 0), ""),
        ((13, 0), (0, 0), ""),  # not reported
    ],
)
def test_gpus_newer_or_older_than_the_build_need_another(
    build: tuple[int, int], capability: tuple[int, int], wanted: str
) -> None:
    gpu = GpuState(index=3, uuid="GPU-3", capability=capability)
    driver = DriverState(version="580.95", cuda=(13, 0), gpus=(gpu,))
    found = judge_driver(TorchBuild(version="2.13.0", cuda=build), driver, [gpu])
    assert found.ok == (not wanted)
    assert wanted in found.do
    if wanted:
        assert f"GPU 3 (compute capability {capability[0]}.{capability[1]}) needs" in found.text


def test_the_build_that_is_installed_is_read_and_not_imported() -> None:
    import torch

    assert torch_build() == TorchBuild(
        version=torch.__version__,
        cuda=None if torch.version.cuda is None else _pair(torch.version.cuda),
        hip=torch.version.hip,
    )


@pytest.mark.gpu
def test_a_driver_that_serves_this_torch_is_found_to(machine: Machine) -> None:
    import torch

    (row,) = machine.rows()["driver"]
    assert row["ok"] == torch.cuda.is_available()
    assert "serves CUDA" in row["text"]


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
