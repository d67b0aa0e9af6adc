"""The driver's version, as the kernel tells it, and the build of torch that it runs."""

from pathlib import Path

import pytest

from machine.gpus.cuda_driver import driver_version, older_build
from tests.clone import tool

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Feb 22 01:44:30 UTC 2024
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"


@pytest.mark.parametrize(
    ("text", "driver", "build"),
    [
        (CLOSED.format("535.183.01"), 535, "cu126"),
        (CLOSED.format("550.54.15"), 550, "cu126"),
        (OPEN.format("570.124.06"), 570, "cu129"),  # Blackwell too, which no older driver knows
        (OPEN.format("580.95.05"), 580, None),
        (OPEN.replace("x86_64", "aarch64").format("580.82.07"), 580, None),
    ],
)
def test_each_driver_gets_a_build_that_runs_on_it(
    tmp_path: Path, text: str, driver: int, build: str | None
) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    assert driver_version(file) == driver
    assert older_build(driver, 13) == build
    assert older_build(driver, 12) is None


def test_no_build_runs_on_a_driver_that_is_older_still() -> None:
    with pytest.raises(ValueError, match="470 is older than 525"):
        older_build(470, 13)


def test_a_driver_that_says_nothing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "version"
    assert driver_version(file) is None
    tool(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed' && exit 9\n")
    assert driver_version(file) is None
    tool(tmp_path / "nvidia-smi", "#!/bin/sh\necho 570.124.06\n")  # as under WSL
    assert driver_version(file) == 570
    file.write_text("torn")
    assert driver_version(file) is None
    file.chmod(0o000)
    assert driver_version(file) in (None, 570)  # root may read it all the same
