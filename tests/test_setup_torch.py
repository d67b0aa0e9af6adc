"""Which build of torch the clone's environment gets, and what is said of it."""

import platform
import re
from pathlib import Path

import pytest

from tests.clone import Clone


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CUDA's wheels are x86's default")
def test_without_a_driver_torch_is_its_build_for_cpu_and_that_is_said_first(clone: Clone) -> None:
    clone.pin("--extra-index-url http://127.0.0.1:9\ntorch==0.0.1\n")
    clone.env |= {"PIP_RETRIES": "0", "https_proxy": "http://127.0.0.1:9"}  # nothing is fetched
    has_driver = Path("/proc/driver/nvidia/version").exists()
    for asked, is_cpu in (("", not has_driver), ("cuda", False), ("cpu", True)):
        said = clone.run(AIRLOCK_TORCH=asked).stderr
        assert ("no NVIDIA driver here: torch will be" in said) == (is_cpu and not asked)
        assert ("its build for CPU, without ~3 GB" in said) == is_cpu
        log = (clone.root / ".venv/install.log").read_text()
        (indexes,) = re.findall(r"^Looking in indexes: (.*)", log, re.MULTILINE)
        assert ("https://download.pytorch.org/whl/cpu" in indexes) == is_cpu
    assert said.index("its build for CPU") < said.index("installing what is pinned")
    assert re.search(r"AIRLOCK_TORCH=cuda '?" + re.escape(f"{clone.root}/start.sh"), said)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CUDA's wheels are x86's default")
def test_where_pip_is_set_to_look_elsewhere_for_torch_it_is_only_said(clone: Clone) -> None:
    clone.pin("--no-index\ntorch==2.13.0\n")
    cpu = "https://download.pytorch.org/whl/cpu"
    result = clone.run(PIP_EXTRA_INDEX_URL=cpu)
    assert "build for CPU" not in result.stderr
    result = clone.run(PIP_INDEX_URL="http://127.0.0.1:9/simple", AIRLOCK_TORCH="cpu")
    assert f"PIP_EXTRA_INDEX_URL={cpu} avoids that" in result.stderr
    assert "--extra-index-url" not in (clone.root / ".venv/install.log").read_text()


def test_a_build_of_torch_that_there_is_none_of_is_refused(clone: Clone) -> None:
    clone.pin("--no-index\ntorch==2.13.0\n")
    result = clone.run(AIRLOCK_TORCH="gpu")
    assert result.returncode == 4
    assert "AIRLOCK_TORCH=gpu: it can be cuda or cpu" in result.stderr
