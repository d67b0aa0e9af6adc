"""The GPU benchmark: its figures are those measured, its claims can fail, and so can a case.

Tests that need a GPU are marked; the others run the same code on CPU.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import as_json, measure_all
from benchmarks.gpus.catalog import BY_NAME, ENTRIES, TRAININGS, Entry
from benchmarks.gpus.claims import claims
from benchmarks.gpus.data import mixed_lengths
from benchmarks.gpus.figures import measured, nvml_peaks
from benchmarks.gpus.memory import GpuMemory
from benchmarks.gpus.record import Record, keep_earlier, read_records
from benchmarks.gpus.run import (
    Done,
    FailedError,
    Figures,
    OutOfTimeError,
    Place,
    SkippedError,
)
from benchmarks.gpus.table import markdown
from benchmarks.gpus.training import Case, Steps
from tests import fake_nvml
from tests.forked import run_module
from tests.running import python

ALONE = ("launch.threads_per_rank=1",)  # two threads would wait for each other
TINY = Case(name="tiny-lora", profile="tiny", method="lora", row_tokens=64)
MIXED = dataclasses.replace(TINY, name="tiny-mixed", rows="mixed", num_rows=8)
QUICK, LONG_S = Steps(warm=2, measured=2), 250.0
TRAINED: Figures = {
    "tokens_per_s": 5000.0,
    "mfu": 0.4,
    "gpu_peak_bytes": 100,
    "plan_peak_bytes": 102,
    "nvml_peak_bytes": 110,
    "plan_most_bytes": 120,
    "first_step_s": 40.0,
    "last_loss": 2.5,
}
FORKED: Figures = {"num_different": 0, "zygote_touched_cuda": False}
RESERVED: Figures = {"allocated_bytes": 50, "limit_bytes": 100}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Place(folder=folder, device="cpu")


def benchmark(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.gpu", *options, env=environ)


def found_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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


def test_a_gpu_that_torch_cannot_use_is_named_and_nothing_is_measured(
    environ: dict[str, str], tmp_path: Path
) -> None:
    pretended = {**fake_nvml.build(tmp_path), "NVML_COUNT": "1", "CUDA_VISIBLE_DEVICES": "0"}
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which torch can use")
    options = ("--json", "--case", "14b-lora", "--out", str(tmp_path / "out"))
    found = found_by(benchmark(environ | pretended, *options))
    assert found["machine"]["gpu"] == "NVIDIA Pretence"
    assert found["skipped"] == {"14b-lora": "this torch cannot use the GPU that is here"}


def test_the_list_names_every_case_and_what_it_needs(environ: dict[str, str]) -> None:
    shown = benchmark(environ, "--list").stdout
    assert all(f" {entry.name} " in shown for entry in ENTRIES)
    assert "disk, GiB" in shown
    assert "1.3 times the Trainer" in shown


_WATCH = """
import os, pathlib, time
from benchmarks.gpus.figures import measured, nvml_peaks
from benchmarks.gpus.memory import GpuMemory
from benchmarks.gpus.run import Place
os.environ["NVML_USED_MIB_0"] = "1000"
with GpuMemory(Place(folder=pathlib.Path()).gpu) as memory:
    for used in ("31000", "2000"):
        os.environ["NVML_USED_MIB_0"] = used
        loaded = time.monotonic() + 0.5
        time.sleep(1)
print(memory.peak_bytes)
print(memory.peak_since(loaded))
"""


def test_the_peak_of_a_gpu_is_above_what_was_in_use_before(
    environ: dict[str, str], tmp_path: Path
) -> None:
    printed = python(_WATCH, env=environ | fake_nvml.build(tmp_path))
    mib = [int(line) / 1024**2 for line in printed.splitlines()]
    assert mib == [30_000, 1_000]  # in all, and from the time at which a model was loaded


def test_memory_is_that_of_a_loaded_model_where_the_events_say_when_it_was() -> None:
    memory = GpuMemory(None)
    memory.before_bytes, memory._samples = 10, [(1.0, 90), (3.0, 60), (4.0, 50)]
    marks = [{"kind": "mark", "name": "mem.post_model", "mono": at} for at in (0.5, 2.0)]
    found = nvml_peaks(memory, Done(started=0.0, events=marks))
    assert found == {"nvml_peak_bytes": 80, "nvml_loaded_peak_bytes": 50}


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
    printed = events([12.0, 14.0, 15.0, 15.5], mfu=0.8, tokens_per_s=256.0)
    found = measured(TINY, Done(started=10.0, events=printed), num_warm=2)
    assert found["num_steps"] == 2
    assert found["tokens_per_s"] == pytest.approx(256 / 1.5, abs=0.1)
    assert found["mfu"] == pytest.approx(0.8 * (256 / 1.5) / 256, abs=1e-3)
    assert (found["first_step_s"], found["gpu_peak_bytes"]) == (2.0, 7)
    with pytest.raises(FailedError, match="2 steps"):
        measured(TINY, Done(started=10.0, events=printed[2:]), num_warm=2)


def test_speed_of_mixed_rows_counts_the_tokens_that_each_step_had() -> None:
    printed = events([10.0, 12.0, 13.0, 17.0], mfu=0.4, tokens_per_s=100.0)
    found = measured(MIXED, Done(started=9.0, events=printed), num_warm=1)
    # 64 tokens/s in 2 s and in 1 s, then 100 in 4 s.
    assert found["tokens_per_s"] == pytest.approx((3 * 64 + 400) / 7, abs=0.1)
    assert found["mfu"] == pytest.approx((3 * 0.2 + 4 * 0.4) / 7, abs=1e-3)


def test_mixed_lengths_are_mostly_short_and_never_longer_than_a_row() -> None:
    lengths = mixed_lengths(4096, 1000)
    assert max(lengths) == 4096
    assert sorted(lengths)[500] < 1000
    assert lengths == mixed_lengths(4096, 1000)


COMPARED: Figures = {"ours_to_trainer": 1.4, "trainer_largest_loss_difference": 0.001}
RESUMED: Figures = {"resumed_gpu_peak_bytes": 100, "whole_gpu_peak_bytes": 100}


@pytest.mark.parametrize(
    ("cases", "claim"),
    [
        ({"a": TRAINED | {"gpu_peak_bytes": 120}}, "off by"),
        ({"a": TRAINED | {"nvml_peak_bytes": 121}}, "the plan's most"),
        ({"a": TRAINED | {"nvml_loaded_peak_bytes": 121}}, "the plan's most"),
        ({"14b-mixed": TRAINED | {"mfu": 0.44}}, "MFU"),
        ({"a": FORKED | {"num_different": 1}}, "losses"),
        ({"a": FORKED | {"zygote_touched_cuda": True}}, "touched CUDA"),
        ({"a": RESERVED | {"allocated_bytes": 101}}, "VmPeak"),
        ({"a": RESERVED | {"step_bytes": 101}}, "VmPeak"),
        ({"a": COMPARED | {"ours_to_trainer": 1.2}}, "the Trainer's"),
        ({"a": COMPARED | {"trainer_largest_loss_difference": 0.1}}, "losses"),
        ({"a": RESUMED | {"resumed_gpu_peak_bytes": 110}}, "resumed"),
    ],
)
def test_every_claim_can_fail(cases: dict[str, Figures], claim: str) -> None:
    good = {
        "training": TRAINED,
        "14b-mixed": TRAINED | {"mfu": 0.46},
        "fork": FORKED,
        "addresses": RESERVED,
        "peers": COMPARED,
        "resume": RESUMED,
    }
    assert as_json(records(good), list(good))["holds"] is True
    (broken,) = (name for name, made in claims(cases).items() if not made.holds)
    assert claim in broken
    assert as_json(records(good | cases), [*good, *cases])["holds"] is False


def test_losses_are_held_to_others_only_where_the_same_done_twice_agrees() -> None:
    apart = FORKED | {"num_different": 3}
    (claim,) = (one for name, one in claims({"a": apart}).items() if "losses" in name)
    assert not claim.holds
    unsteady = apart | {"cold_again_num_different": 2}
    assert not [name for name in claims({"a": unsteady}) if "losses" in name]


def records(cases: dict[str, Figures], **fields: Any) -> dict[str, Record]:
    made = {"shows": "", "date": "2026-01-02 03:04:05", "command": "measure", "status": "done"}
    return {
        name: Record(case=name, figures=figures, **{**made, **fields})
        for name, figures in cases.items()
    }


def test_what_was_left_out_is_no_failure_and_no_proof() -> None:
    done = records({"a": TRAINED})
    assert as_json(done, ["a"])["holds"] is True
    assert as_json(done, ["a", "b"])["holds"] == "incomplete"
    for status, holds in (("skipped", "incomplete"), ("stopped", "incomplete"), ("failed", False)):
        others = records({"b": {}}, status=status, reason="why")
        found = as_json(done | others, ["a", "b"])
        assert (found["holds"], found[status]) == (holds, {"b": "why"})


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

    (record,) = records({"a": {}}, status="running").values()
    with pytest.raises(KeyboardInterrupt):
        record.fill(parts(), tmp_path)
    assert [len(one["figures"]) for one in seen] == [1, 2, 3]
    assert {one["status"] for one in seen} == {"running"}
    assert read_records(tmp_path)["a"].status == "stopped"


def test_the_table_names_machine_date_command_and_what_each_goal_came_to() -> None:
    gpu = {"gpu": "NVIDIA H100", "gpu_memory_bytes": 80 * 1024**3, "driver": "580", "cores": 16}
    made = records({"14b-mixed": TRAINED, "peers": COMPARED}, machine=gpu, command="measure me")
    shown = markdown(made)
    for what in ("2026-01-02; NVIDIA H100", "`measure me`", "| 5,000 | 40.0% |", "≥ 1.3 | yes |"):
        assert what in shown
    assert "| 0.4 | ≥ 0.45 | **no** |" in shown


def test_what_is_asked_for_reaches_every_run_after_the_settings_of_its_case() -> None:
    place = Place(folder=Path("/x"), device="cuda", settings=("model.attention=eager",))
    case = dataclasses.replace(TINY, settings=("model.attention=sdpa",))
    printed = [one for one in case.on(place).options() if "attention" in one]
    assert printed == ["--set=model.attention=sdpa", "--set=model.attention=eager"]


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
