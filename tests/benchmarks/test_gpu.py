"""The GPU benchmark: what it prints and records, also of cases that fail or cannot be measured.

The test that needs a GPU is marked; the others run the same code on CPU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import as_json, measure_all
from benchmarks.gpus.catalog import BY_NAME, ENTRIES, TRAININGS, Entry
from benchmarks.gpus.record import Record, keep_earlier, read_records
from benchmarks.gpus.run import Done, FailedError, Figures, OutOfTimeError, Place, SkippedError
from benchmarks.gpus.table import markdown
from benchmarks.gpus.training import Steps
from tests.forked import run_module

QUICK = Steps(warm=2, measured=2)
TRAINED: Figures = {
    "tokens_per_s": 5000.0,
    "mfu": 0.4,
    "roofline_tokens_per_s": 8000.0,
    "gpu_peak_bytes": 100,
    "plan_peak_bytes": 102,
    "nvml_peak_bytes": 110,
    "plan_most_bytes": 120,
    "first_step_s": 40.0,
    "last_loss": 2.5,
}


def benchmark(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.gpu", *options, env=environ)


def found_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.runs
def test_without_a_gpu_every_case_is_skipped_with_the_reason(
    environ: dict[str, str], tmp_path: Path
) -> None:
    env = environ | {"CUDA_VISIBLE_DEVICES": ""}
    found = found_by(benchmark(env, "--json", "--quick", "--out", str(tmp_path / "out")))
    assert found["holds"] == "incomplete"
    assert found["cases"] == found["ratios"] == {}
    assert list(found["skipped"]) == [entry.name for entry in ENTRIES]
    assert {case.name for case in TRAININGS} < set(found["skipped"])
    assert set(found["skipped"].values()) == {"no NVIDIA GPU is visible here"}
    assert found["machine"]["cores"] > 0
    assert {file.stem for file in (tmp_path / "out").glob("*.json")} == set(BY_NAME)


def case_of(name: str, *parts: Figures | Exception) -> Entry:
    def measure(_place: Place, _steps: Steps, timeout_s: float) -> Iterator[Figures]:
        yield {"timeout_s": timeout_s}
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield part

    return Entry(name=name, shows="", gpu_gib=0, minutes=1, measure=measure)


def test_a_case_that_fails_or_cannot_be_measured_does_not_stop_the_others(
    place: Place, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    late = OutOfTimeError("time was up", Done(started=0.0, events=()))
    entries = [
        case_of("skipped", SkippedError("it does not fit")),
        case_of("failed", {"half": 1}, FailedError("its last words")),
        case_of("broken", KeyError("rank")),
        case_of("late", {"half": 1}, late),
        case_of("good", TRAINED),
    ]
    assert measure_all(entries, place, out, QUICK, 600.0) == []
    found = read_records(out)
    assert [found[one.name].status for one in entries] == [
        "skipped",
        "failed",
        "failed",
        "stopped",
        "done",
    ]
    assert found["failed"].reason == "its last words"
    assert found["late"].figures["half"] == 1
    assert 500 < found["good"].figures["timeout_s"] < 600
    told = as_json(found, [one.name for one in entries])
    assert (told["holds"], told["stopped"]) == (False, {"late": "time was up"})
    assert told["failed"] == {"failed": "its last words", "broken": "KeyError: 'rank'"}
    shown = markdown(found)
    assert all(
        what in shown for what in ("its last words", "it does not fit", "40.0%", "time was up")
    )


def test_nothing_is_begun_when_the_time_is_up(place: Place, tmp_path: Path) -> None:
    assert measure_all([case_of("late", TRAINED)], place, tmp_path, QUICK, 5.0) == ["late"]
    assert read_records(tmp_path) == {}


def test_a_second_command_goes_on_and_no_result_is_lost(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    half = case_of("one", {"half": 1}, FailedError("its last words"))
    whole, other = case_of("one", {"whole": 1}), case_of("one", {"whole": 2})
    measure_all([half], place, out, QUICK, 600.0)
    measure_all([whole], place, out, QUICK, 600.0)
    assert read_records(out)["one"].figures["whole"] == 1
    measure_all([other], place, out, QUICK, 600.0)
    assert read_records(out)["one"].figures["whole"] == 1  # it is done
    measure_all([other], place, out, QUICK, 600.0, again=True)
    assert read_records(out)["one"].figures["whole"] == 2
    kept = [json.loads((out / f"one.{number}.json").read_text()) for number in (1, 2)]
    assert [one["figures"].get("half") for one in kept] == [1, None]
    keep_earlier(out, "never")


def test_a_result_is_there_before_its_case_has_ended(tmp_path: Path) -> None:
    seen = []

    def parts() -> Iterator[Figures]:
        for number in range(3):
            yield {f"figure_{number}": number}
            seen.append(json.loads((tmp_path / "a.json").read_text()))
        raise KeyboardInterrupt

    record = Record(case="a", shows="", date="2026-01-02 03:04:05", command="measure")
    with pytest.raises(KeyboardInterrupt):
        record.fill(parts(), tmp_path)
    assert [len(one["figures"]) for one in seen] == [1, 2, 3]
    assert {one["status"] for one in seen} == {"running"}
    assert read_records(tmp_path)["a"].status == "stopped"


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_real_gpu_nothing_fails_and_every_claim_holds(
    environ: dict[str, str], tmp_path: Path
) -> None:
    cases = ("vmpeak", "attention-kernels", "tiny-fork", "tiny-fork-lora", "14b-lora")
    named = [word for case in cases for word in ("--case", case)]
    found = found_by(benchmark(environ, "--quick", "--json", *named, "--out", str(tmp_path)))
    assert found["holds"] in (True, "incomplete"), found  # what does not fit is skipped
    assert found["machine"]["gpu"]
    assert found["cases"]["tiny-fork"]["num_different"] == 0
