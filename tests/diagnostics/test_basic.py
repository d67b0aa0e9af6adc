"""The basic rung: it passes on a healthy machine, and fails when something it checks is broken."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.basic import judge_cuda
from machine.gpus.devices import Gpu
from tests.diagnosing import diagnose, environment, require_gpu

GPU = Gpu(0, "GPU-0123", "NVIDIA H100", 80 * 1024**3)
DRIVER = "driver 550.1 for CUDA up to 12.4"


@pytest.mark.runs
def test_this_machine_passes_the_checks_under_the_limit_that_a_rank_gets() -> None:
    ended = diagnose("basic", env=environment(AIRLOCK_RLIMIT_AS_GIB="6"))
    assert ended.code == 0, ended.output
    assert [row["check"] for row in ended.summary["findings"]] == [
        *("packages", "address space", "cuda", "cpu")
    ]
    assert ended.finding("cpu")["figures"]["float32_error"] > 0
    assert ended.finding("address space")["figures"]["rlimit_as_bytes"] == 6 * 1024**3
    assert ended.summary["vm_peak_bytes"] < 6 * 1024**3


@pytest.mark.runs
def test_a_package_outside_its_range_and_a_gpu_that_is_not_there_are_red(tmp_path: Path) -> None:
    info = tmp_path / "peft-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.1.0\n")
    ended = diagnose("basic", env=environment(tmp_path, CUDA_VISIBLE_DEVICES="77"))
    assert ended.code == 4
    finding = ended.finding("packages")
    assert "peft>=0.18 (0.1.0 is installed)" in finding["text"]
    assert "-m pip install -r" in finding["do"]
    assert "CUDA_VISIBLE_DEVICES=77" in ended.finding("cuda")["text"]
    assert "  → " in ended.output


def test_a_limit_that_no_rank_can_start_with_is_red_before_torch_is_imported() -> None:
    ended = diagnose("basic", env=environment(AIRLOCK_RLIMIT_AS_GIB="0.5"))
    assert ended.code == 4
    found = ended.finding("address space")
    assert "no rank starts with 0.50 GiB of address space" in found["text"]
    assert "AIRLOCK_RLIMIT_AS_GIB=" in found["do"]
    assert ended.summary["findings"][-1] == found


def test_a_limit_of_the_shell_that_is_too_low_is_red() -> None:
    command = f"ulimit -v {1024 * 1024}; exec {shlex.quote(sys.executable)} -P -m diagnostics.basic"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    assert "FAIL  address space: ulimit -v: no rank starts with 1.00 GiB" in done.stdout
    assert "  → ulimit -v " in done.stdout


def test_a_check_that_takes_too_long_ends_with_its_stack(tmp_path: Path) -> None:
    # In the middle of importing the real one, our own frame may be more than a hundred frames up.
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3600)\n")
    ended = diagnose("basic", "--timeout-s", "1", env=environment(tmp_path))
    assert ended.code == 1
    assert "Timeout" in ended.output
    assert f'File "{tmp_path}/torch.py", line 2' in ended.output
    assert "diagnostics/basic.py" in ended.output


@pytest.mark.parametrize(
    ("num_visible", "cuda", "num_usable", "text", "do"),
    [
        (1, None, 0, "is built without CUDA", "pip uninstall -y torch"),
        (2, "13.0", 1, "CUDA 13.0, which reaches 1 of them", "nvidia-smi"),
        (0, None, 0, "hides all 2 GPUs", ""),  # no failure
    ],
)
def test_a_torch_that_does_not_reach_every_visible_gpu_is_red(
    num_visible: int, cuda: str | None, num_usable: int, text: str, do: str
) -> None:
    finding = judge_cuda([GPU] * 2, [GPU] * num_visible, cuda, num_usable, DRIVER)
    assert finding.ok == (not do)
    assert text in finding.text
    assert (DRIVER in finding.text) == (num_visible > 0)
    assert do in finding.do


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_one_wrong_element_of_a_product_is_found(wrong: float) -> None:
    import torch

    from diagnostics.basic import multiply, worst_error

    *_, limit = multiply(torch.device("cpu"), torch.bfloat16)
    a, b = torch.rand((64, 64)), torch.rand((64, 64))
    product = a @ b
    assert worst_error(product, a, b) <= limit
    product[3, 5] += wrong
    assert worst_error(product, a, b) > limit


@pytest.mark.gpu
def test_every_visible_gpu_passes_the_basic_checks() -> None:
    require_gpu()
    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("basic", env=env)
    assert ended.code == 0, ended.output
    assert ended.finding("cuda:0")["figures"]["bfloat16_error"] > 0
