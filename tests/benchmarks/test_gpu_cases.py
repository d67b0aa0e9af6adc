"""The GPU benchmark leaves its machine as it was: processes end, disk and GPU are not overfilled.

Its cases run on CPU, with a small model.
"""

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

from benchmarks.gpus.autocast import autocast
from benchmarks.gpus.catalog import TRAININGS
from benchmarks.gpus.record import read_records
from benchmarks.gpus.run import FailedError, OutOfTimeError, Place, SkippedError, follow, merged
from benchmarks.gpus.staging import staging
from benchmarks.gpus.training import Case, Steps, train
from tests import fake_drivers
from tests.conftest import ROOT
from tests.running import wait_for

TINY = Case(name="tiny-lora", profile="tiny", method="lora", row_tokens=64)
QUICK, LONG_S = Steps(warm=2, measured=2), 250.0


def left_running(folder: Path) -> list[psutil.Process]:
    """Return the processes whose caches are in that folder."""

    def cache(process: psutil.Process) -> str:
        with contextlib.suppress(psutil.Error):
            return process.environ().get("AIRLOCK_CACHE_DIR", "")
        return ""

    return [one for one in psutil.process_iter() if str(folder) in cache(one)]


def test_a_run_that_cannot_start_fails_with_what_it_said(place: Place) -> None:
    with pytest.raises(FailedError, match=r"(?s)ended with 2.*no profile 'nonsense'"):
        follow("bad", ["nonsense"], place, timeout_s=LONG_S)


@pytest.mark.runs
def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(place: Place) -> None:
    begun = time.monotonic()
    with pytest.raises(FailedError, match="not done after 3 s"):
        follow("slow", ["tiny", "--set=train.max_steps=1000000"], place, timeout_s=3.0)
    assert time.monotonic() - begun < LONG_S
    assert not left_running(place.folder)


@pytest.mark.runs
def test_a_program_that_takes_too_long_is_ended(place: Place) -> None:
    with pytest.raises(OutOfTimeError, match="not done after"):
        merged(autocast(place, 0.2))
    assert not left_running(place.folder)


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
    assert not left_running(tmp_path)
    assert not list(tmp_path.glob("airlock-gpu/tiny-fork*"))


@pytest.mark.long
def test_what_does_not_fit_a_gpu_is_skipped_whatever_the_host_has(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretended = {**fake_drivers.nvml(tmp_path), "NVML_COUNT": "1", "NVML_TOTAL_MIB_0": "24576"}
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


def test_files_that_the_disk_has_no_room_for_are_skipped_with_the_figures(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(
        "benchmarks.gpus.files.shutil.disk_usage", lambda _: usage._replace(free=1024**3)
    )
    with pytest.raises(SkippedError, match=r"the files take [\d.]+ GiB, and .* has 1\.0 GiB free"):
        merged(staging(place, LONG_S))
