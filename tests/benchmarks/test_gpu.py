"""The GPU benchmark: its figures are those measured, its claims can fail, and so can a case.

Tests that need a GPU are marked; the others run the same code on CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.gpu import Found, as_json, claims, measure_all, measures, print_tables
from benchmarks.gpus.address import address_space
from benchmarks.gpus.fork import compare_starts
from benchmarks.gpus.run import Done, FailedError, Place, SkippedError, follow
from benchmarks.gpus.training import CASES, Case, Figures, Steps, measured, train
from tests import fake_nvml
from tests.conftest import ROOT

ALONE = ("launch.threads_per_rank=1",)  # two threads would wait for each other
TINY = Case(name="tiny LoRA", profile="tiny", method="lora", row_tokens=64, settings=ALONE)
QUICK, LONG_S = Steps(warm=2, measured=2), 250.0
TRAINED: Figures = {
    "tokens_per_s": 5000.0,
    "mfu": 0.4,
    "gpu_peak_bytes": 100,
    "plan_peak_bytes": 102,
    "nvml_peak_bytes": 110,
    "plan_most_bytes": 120,
    "first_step_s": 40.0,
}
FORKED: Figures = {"num_different": 0, "zygote_touched_cuda": False}
RESERVED: Figures = {"allocated_bytes": 50, "limit_bytes": 100}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(folder=tmp_path, device="cpu")


def benchmark(environ: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.gpu", "--quick", "--json"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_without_a_gpu_every_case_is_skipped_with_the_reason(
    environ: dict[str, str], place: Place
) -> None:
    found = benchmark(environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert found["holds"] == "incomplete"
    assert found["cases"] == found["ratios"] == {}
    assert list(found["skipped"]) == list(measures(place, QUICK))
    assert {case.name for case in CASES} < set(found["skipped"])
    assert set(found["skipped"].values()) == {"no NVIDIA GPU is visible here"}
    assert found["machine"]["cores"] > 0


def test_a_gpu_that_torch_cannot_use_is_named_and_nothing_is_measured(
    environ: dict[str, str], tmp_path: Path
) -> None:
    pretended = {**fake_nvml.build(tmp_path), "NVML_COUNT": "1", "CUDA_VISIBLE_DEVICES": "0"}
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which torch can use")
    found = benchmark(environ | pretended)
    assert found["machine"]["gpu"] == "NVIDIA Pretence"
    assert set(found["skipped"].values()) == {"this torch cannot use the GPU that is here"}


_WATCH = """
import os, pathlib, time
from benchmarks.gpus.run import GpuMemory, Place
os.environ["NVML_USED_MIB_0"] = "1000"
with GpuMemory(Place(folder=pathlib.Path()).gpu) as memory:
    for used in ("31000", "2000"):
        os.environ["NVML_USED_MIB_0"] = used
        time.sleep(1)
print(memory.peak_bytes)
"""


def test_the_peak_of_a_gpu_is_above_what_was_in_use_before(
    environ: dict[str, str], tmp_path: Path
) -> None:
    env = environ | fake_nvml.build(tmp_path)
    told = subprocess.run(
        [sys.executable, "-P", "-c", _WATCH], env=env, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == 30_000 * 1024**2


def events(seconds: list[float], **last: Any) -> list[Any]:
    """Return the events of a rank whose steps ended at these times."""
    parts = {f"time_{part}_s": 0.1 for part in ("data", "forward", "backward", "comm", "optimizer")}
    made: list[Any] = [
        {
            "kind": "metric",
            "name": "train",
            "mono": at,
            "mfu": 0.2,
            "tokens_per_s": 64.0,
            "loss": 3.0,
            **parts,
        }
        for at in seconds
    ]
    made[-1] |= last
    return [*made, {"kind": "mark", "name": "train.result", "gpu_peak_bytes": 7}]


def test_speed_and_mfu_are_of_the_steps_after_the_first() -> None:
    # 128 tokens per step: 64 tokens/s at first, then 128 and 256.
    told = events([12.0, 14.0, 15.0, 15.5], mfu=0.8, tokens_per_s=256.0)
    found = measured(TINY, Done(started=10.0, events=told), num_warm=2)
    assert found["num_steps"] == 2
    assert found["tokens_per_s"] == pytest.approx(256 / 1.5, abs=0.1)
    assert found["mfu"] == pytest.approx(0.8 * (256 / 1.5) / 256, abs=1e-3)
    assert (found["first_step_s"], found["gpu_peak_bytes"]) == (2.0, 7)
    with pytest.raises(FailedError, match="2 steps"):
        measured(TINY, Done(started=10.0, events=told[2:]), num_warm=2)


@pytest.mark.parametrize(
    ("cases", "claim"),
    [
        ({"a": TRAINED | {"gpu_peak_bytes": 120}}, "off by"),
        ({"a": TRAINED | {"nvml_peak_bytes": 121}}, "the plan's most"),
        ({"a": FORKED | {"num_different": 1}}, "losses"),
        ({"a": FORKED | {"zygote_touched_cuda": True}}, "touched CUDA"),
        ({"a": RESERVED | {"allocated_bytes": 101}}, "VmPeak"),
    ],
)
def test_every_claim_can_fail(cases: dict[str, Figures], claim: str) -> None:
    good = {"training": TRAINED, "fork": FORKED, "addresses": RESERVED}
    assert as_json(Found(cases=dict(good)), is_quick=False)["holds"] is True
    (broken,) = (name for name, ratio in claims(cases).items() if not ratio["holds"])
    assert claim in broken
    assert as_json(Found(cases=good | cases), is_quick=False)["holds"] is False


def test_what_was_left_out_is_no_failure_and_no_proof() -> None:
    assert as_json(Found(cases={"a": TRAINED}), is_quick=True)["holds"] == "incomplete"
    found = Found(cases={"a": TRAINED}, skipped={"b": "it does not fit"})
    assert as_json(found, is_quick=False)["holds"] == "incomplete"
    assert as_json(Found(failed={"b": "it broke"}), is_quick=False)["holds"] is False


def test_a_case_that_fails_or_cannot_be_measured_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends_with(error: Exception) -> Callable[[float], Figures]:
        def measure(_timeout_s: float) -> Figures:
            raise error

        return measure

    todo = {
        "skipped": ends_with(SkippedError("it does not fit")),
        "failed": ends_with(FailedError("its last words")),
        "broken": ends_with(KeyError("rank")),
        "good": lambda timeout_s: TRAINED | {"timeout_s": timeout_s},
    }
    found = measure_all(todo, case_s=30.0, total_s=600.0)
    assert found.skipped == {"skipped": "it does not fit"}
    assert found.failed == {"failed": "its last words", "broken": "KeyError: 'rank'"}
    assert found.cases["good"]["timeout_s"] == 30.0
    print_tables(as_json(found, is_quick=False))
    shown = capsys.readouterr().out
    assert all(what in shown for what in ("its last words", "it does not fit", "40.0%", "FAILED"))


def test_nothing_is_begun_when_the_time_is_up() -> None:
    found = measure_all({"late": lambda _: TRAINED}, case_s=30.0, total_s=5.0)
    assert found.cases == {}
    assert "no time was left" in found.skipped["late"]


def test_a_run_that_cannot_start_fails_with_what_it_said(place: Place) -> None:
    with pytest.raises(FailedError, match=r"(?s)ended with 2.*no profile 'nonsense'"):
        follow("bad", ["nonsense"], place, timeout_s=LONG_S)


@pytest.mark.runs
def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(place: Place) -> None:
    begun = time.monotonic()
    with pytest.raises(FailedError, match="not done after 3 s"):
        follow("slow", ["tiny", "--set=train.max_steps=1000000"], place, timeout_s=3.0)
    assert time.monotonic() - begun < LONG_S
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert process.environ().get("AIRLOCK_CACHE_DIR") != str(place.folder / "cache")


def test_a_method_that_there_is_not_is_skipped_with_what_the_plan_said(place: Place) -> None:
    with pytest.raises(SkippedError, match="'nonsense'"):
        train(dataclasses.replace(TINY, method="nonsense"), place, QUICK, LONG_S)


@pytest.mark.long  # what would fit instead is traced too
def test_what_does_not_fit_is_skipped_with_the_figures_of_the_plan(place: Place) -> None:
    huge = dataclasses.replace(TINY, row_tokens=1_000_000)
    with pytest.raises(SkippedError, match=r"needs [\d,.]+ GiB at least, and .* available"):
        train(huge, place, QUICK, LONG_S)


@pytest.mark.runs
def test_addresses_are_counted_in_a_process_of_their_own(place: Place) -> None:
    found = address_space(place, LONG_S, expandable=True)
    assert 0 < found["torch_bytes"] <= found["device_bytes"]
    assert found["allocated_bytes"] >= found["device_bytes"] + 1024**3 // 2
    assert found["limit_bytes"] > found["allocated_bytes"]


@pytest.mark.long
def test_what_does_not_fit_a_gpu_is_skipped_whatever_the_host_has(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretended = {**fake_nvml.build(tmp_path), "NVML_COUNT": "1", "NVML_TOTAL_MIB_0": "24576"}
    for name, value in pretended.items():
        monkeypatch.setenv(name, value)
    on_gpu = dataclasses.replace(place, device="cuda")
    with pytest.raises(SkippedError, match=r"a rank needs 3[\d.]+ GiB .* NVIDIA Pretence has 23"):
        train(CASES[0], on_gpu, QUICK, LONG_S)


@pytest.mark.long
def test_a_training_is_planned_followed_and_stopped_before_it_exports(place: Place) -> None:
    found = train(TINY, place, QUICK, LONG_S)
    assert found["num_steps"] >= QUICK.measured
    assert found["tokens_per_s"] > 0
    assert found["plan_peak_bytes"] > 0
    assert found["num_trainable"] < found["num_parameters"]
    assert found["mfu"] is found["gpu_peak_bytes"] is found["nvml_peak_bytes"] is None
    assert not list(place.folder.glob("*/*/model"))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_warm_and_a_cold_start_are_compared_loss_by_loss(place: Place) -> None:
    found = compare_starts(place, 2 * LONG_S, name="full", settings=ALONE)
    assert (found["num_steps"], found["num_different"], found["zygote_touched_cuda"]) == (8, 0, 0)
    assert found["last_loss"] > 0


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_real_gpu_nothing_fails_and_every_claim_holds(environ: dict[str, str]) -> None:
    found = benchmark(environ)
    assert found["holds"] == "incomplete", found  # as --quick leaves some out
    assert found["machine"]["gpu"]
    assert found["cases"]["warm fork, tiny, full"]["num_different"] == 0
