"""The cases of the GPU benchmark, each run to its end on CPU with a small model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpus.address import address_space
from benchmarks.gpus.attention import attention
from benchmarks.gpus.autocast import autocast
from benchmarks.gpus.catalog import TRAININGS
from benchmarks.gpus.fork import compare_starts
from benchmarks.gpus.peers import compare
from benchmarks.gpus.record import read_records
from benchmarks.gpus.resume import resumed
from benchmarks.gpus.run import (
    FailedError,
    OutOfTimeError,
    Place,
    SkippedError,
    follow,
    merged,
)
from benchmarks.gpus.staging import staging
from benchmarks.gpus.start import starts
from benchmarks.gpus.training import Case, Steps, train
from tests import fake_nvml
from tests.conftest import ROOT
from tests.running import wait_for

ALONE = ("launch.threads_per_rank=1",)  # two threads would wait for each other
TINY = Case(name="tiny-lora", profile="tiny", method="lora", row_tokens=64)
MIXED = dataclasses.replace(TINY, name="tiny-mixed", rows="mixed", num_rows=8)
QUICK, LONG_S = Steps(warm=2, measured=2), 250.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Place(folder=folder, device="cpu")


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
        merged(train(dataclasses.replace(TINY, method="nonsense"), place, QUICK, LONG_S))


@pytest.mark.runs
def test_what_the_ranks_refuse_is_skipped_with_what_the_program_said(place: Place) -> None:
    settings = ("model.dtype=bfloat16", "model.attention=flash_attention_2")
    with pytest.raises(SkippedError, match="flash_attention_2"):
        merged(train(dataclasses.replace(TINY, settings=settings), place, QUICK, LONG_S))


@pytest.mark.long  # what would fit instead is traced too
def test_what_does_not_fit_is_skipped_with_the_figures_of_the_plan(place: Place) -> None:
    huge = dataclasses.replace(TINY, settings=("data.max_seq_length=1000000",))
    with pytest.raises(SkippedError, match=r"needs [\d,.]+ GiB at least, and .* available"):
        merged(train(huge, place, QUICK, LONG_S))


@pytest.mark.runs
def test_addresses_are_counted_in_a_process_of_their_own(place: Place) -> None:
    found = merged(address_space(place, LONG_S, expandable=True))
    assert 0 < found["torch_bytes"] <= found["device_bytes"]
    assert found["allocated_bytes"] >= found["device_bytes"] + 1024**3 // 2
    assert found["step_bytes"] >= found["group_bytes"] >= found["allocated_bytes"]
    assert found["limit_bytes"] > found["step_bytes"]


@pytest.mark.runs
def test_a_program_that_takes_too_long_is_ended(place: Place) -> None:
    with pytest.raises(OutOfTimeError, match="not done after"):
        merged(autocast(place, 0.2))
    assert not [one for one in psutil.process_iter() if str(place.folder) in _told(one)]


def _told(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("AIRLOCK_CACHE_DIR", "")
    return ""


@pytest.mark.runs
def test_a_benchmark_that_is_terminated_notes_it_and_leaves_nothing_running(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--case", "tiny-fork", "--out", str(tmp_path)]
    command = [sys.executable, "-P", "-m", "benchmarks.gpu", *options]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        log = tmp_path / "airlock-gpu/work-tiny-fork-warm/launcher.log"
        wait_for(lambda: log.exists() and log.stat().st_size > 0, why="a run")
        process.terminate()
        assert process.wait(LONG_S) == 128 + signal.SIGTERM
    found = read_records(tmp_path)["tiny-fork"]
    assert (found.status, found.reason) == ("stopped", "the benchmark was ended from outside")
    assert not [one for one in psutil.process_iter() if str(tmp_path) in _told(one)]
    assert not list(tmp_path.glob("airlock-gpu/tiny-fork*"))


@pytest.mark.runs
def test_attention_is_timed_in_every_way_that_is_here_and_is_the_same(place: Place) -> None:
    found = merged(attention(place, LONG_S))
    assert found["mask_default_is_the_same"] is True
    assert found["mask_no_cudnn_ms"] > 0
    assert "flash_ms" in found or "No module named" in found["flash_skipped"]


@pytest.mark.runs
def test_a_step_with_and_without_autocast_has_the_same_loss_but_for_rounding(place: Place) -> None:
    found = merged(autocast(place, LONG_S))
    assert found["fp32_loss"] == pytest.approx(found["autocast_loss"], rel=0.01)
    assert found["fp32_grad_norm"] == pytest.approx(found["autocast_grad_norm"], rel=0.05)
    assert found["fp32_step_s"] > 0


@pytest.mark.long
def test_what_does_not_fit_a_gpu_is_skipped_whatever_the_host_has(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretended = {**fake_nvml.build(tmp_path), "NVML_COUNT": "1", "NVML_TOTAL_MIB_0": "24576"}
    for name, value in pretended.items():
        monkeypatch.setenv(name, value)
    on_gpu = dataclasses.replace(place, device="cuda")
    with pytest.raises(SkippedError, match=r"a rank needs 3[\d.]+ GiB .* NVIDIA Pretence has 23"):
        merged(train(TRAININGS[0], on_gpu, QUICK, LONG_S))


@pytest.mark.long
def test_a_training_is_planned_followed_and_stopped_before_it_exports(place: Place) -> None:
    found = merged(train(TINY, place, QUICK, LONG_S))
    assert found["num_steps"] >= QUICK.measured
    assert found["tokens_per_s"] > 0
    assert found["plan_peak_bytes"] > 0
    assert found["num_trainable"] < found["num_parameters"]
    assert found["mfu"] is found["gpu_peak_bytes"] is found["nvml_peak_bytes"] is None
    assert not list(place.folder.glob("*/*/model"))


@pytest.mark.long
def test_full_training_is_killed_where_the_disk_has_no_room_for_its_checkpoint(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(
        "benchmarks.gpus.training.shutil.disk_usage", lambda _: usage._replace(free=1024**3)
    )
    (full,) = (case for case in TRAININGS if case.name == "7b-full")  # an architecture of its own
    found = merged(train(full, place, QUICK, LONG_S))
    assert "1.0 GiB of the disk are free" in found["killed_because"]
    assert found["num_parameters"] == found["num_trainable"] == 821_120
    assert found["num_steps"] >= QUICK.measured
    assert not list(place.folder.glob("7b-full/*/checkpoints/*"))


@pytest.mark.long
def test_a_training_that_is_not_done_in_time_stops_with_the_steps_that_it_has(
    place: Place,
) -> None:
    found = merged(train(MIXED, place, Steps(warm=1, measured=10**6), 100.0))
    assert found["num_steps"] >= 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_warm_and_a_cold_start_are_compared_loss_by_loss(place: Place) -> None:
    found = merged(compare_starts(place, 2 * LONG_S, name="full", settings=ALONE))
    assert (found["num_steps"], found["num_different"], found["zygote_touched_cuda"]) == (8, 0, 0)
    assert found["last_loss"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_files_are_written_once_and_then_read_started_from_and_staged(place: Place) -> None:
    found = merged(staging(place, LONG_S))
    written = (place.folder / "model-tiny/written.json").stat().st_mtime_ns
    assert found["files_bytes"] > 1_000_000
    assert found["pinned_gb_per_s"] > 0
    assert found["disk_to_device_s_per_gb"] > 0
    found = merged(starts(MIXED, place, 3 * LONG_S))
    assert (place.folder / "model-tiny/written.json").stat().st_mtime_ns == written
    assert found["num_steps"] >= 6
    assert found["cold_again_num_different"] == found["num_different"] == 0
    assert found["warm_first_step_s"] > 0
    assert found["cold_model_load_s"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_run_resumes_with_the_losses_of_one_that_was_not(place: Place) -> None:
    found = merged(resumed(TINY, place, 3 * LONG_S))
    assert found["killed_after_steps"] >= 5
    assert found["resumed_from_step"] >= 3
    assert found["num_steps"] >= 2
    assert found["num_different"] == found["repeated_num_different"] == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_trainer_and_accelerate_train_the_same_to_the_same_losses(place: Place) -> None:
    found = merged(compare(MIXED, place, QUICK, 3 * LONG_S, most_rounds=1))
    assert found["num_rounds"] == 1
    assert found["ours_to_trainer"] > 0
    assert found["trainer_largest_loss_difference"] < 0.02
    assert found["accelerate_largest_loss_difference"] < 0.02


def test_files_that_the_disk_has_no_room_for_are_skipped_with_the_figures(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(
        "benchmarks.gpus.files.shutil.disk_usage", lambda _: usage._replace(free=1024**3)
    )
    with pytest.raises(SkippedError, match=r"the files take [\d.]+ GiB, and .* has 1\.0 GiB free"):
        merged(staging(place, LONG_S))
