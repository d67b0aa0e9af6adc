"""How weights in bfloat16 are updated: by copies where they fit, else by stochastic rounding."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from launch.config.job import Job
from launch.config.request import Request
from launch.plan.fit import Fit
from launch.plan.of_run import DoesNotFitError, PlanOfRun
from launch.plan.plan import Plan
from launch.plan.planning import plan_text
from launch.plan.question import question_of
from launch.plan.show import show_plan, updates_lines
from launch.plan.tracer import Tracer, keep
from launch.plan.ways import Decided, chosen, ways_of, with_ways
from launch.run.ready import make_ready
from machine.gpus.devices import Gpu, Placement
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.footprint import Footprint
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedData, read_prepared, write_prepared
from rundir.units import GIB
from tests.launch.plan.made import CONFIG, FOOTPRINT, FULL, host_of, on_gpus

COPIES = 40_000_000_000  # bytes


def footprint_of(way: str, more_bytes: int = 0) -> Footprint:
    more = more_bytes + (COPIES if way == "master" else 0)
    return replace(
        FOOTPRINT,
        optimizer_bytes=FOOTPRINT.optimizer_bytes + more,
        peak_bytes=FOOTPRINT.peak_bytes + more,
    )


def plans(gpu: str | None, config: RunConfig = FULL) -> list[Plan]:
    """Return the plans of each way; with copies a rank needs about 62 GiB, else about 25."""
    base = on_gpus(gpu or "H100")
    if gpu is None:
        base = replace(base, target=replace(base.target, gpu=None))
    return [
        replace(base, config=one, footprint=footprint_of(one.train.bf16_updates))
        for one in with_ways(config)
    ]


@pytest.mark.parametrize(
    ("gpu", "way", "verdicts"),
    [
        ("H100", "master", [Fit.FITS, Fit.FITS]),
        ("48G", "stochastic", [Fit.DOES_NOT_FIT, Fit.FITS]),
        ("24G", "stochastic", [Fit.DOES_NOT_FIT, Fit.DOES_NOT_FIT]),
        (None, "master", [None, None]),
    ],
)
def test_copies_are_taken_where_they_fit_or_no_limit_is_known(
    gpu: str | None, way: str, verdicts: list[Fit | None]
) -> None:
    plan = chosen(plans(gpu))
    assert plan.config.train.bf16_updates == way
    assert plan.footprint == footprint_of(way)
    assert [one.verdict for one in plan.updates] == verdicts
    assert [one.way for one in plan.updates if one.is_taken] == [way]
    (line,) = updates_lines(plan)
    assert f"train.bf16_updates={way}" in line
    assert "with float32 copies" in line
    assert "with stochastic rounding" in line


def test_there_is_a_choice_only_if_all_of_a_model_in_bfloat16_is_trained() -> None:
    assert ways_of(FULL) == ("master", "stochastic")
    assert ways_of(CONFIG) == ("master",)  # lora
    in_float32 = replace(FULL, model=replace(FULL.model, dtype="float32"))
    assert ways_of(in_float32) == ("master",)
    for way in ("master", "stochastic", "plain"):
        asked = replace(FULL, train=replace(FULL.train, bf16_updates=way))
        assert ways_of(asked) == (way,)
        assert chosen(plans("24G", asked)).updates == ()


def test_the_plan_shows_both_on_the_screen_and_as_json() -> None:
    plan, out = chosen(plans("48G")), io.StringIO()
    show_plan(Console(file=out, width=120), plan)
    text = out.getvalue()
    assert "master: float32 copies" in text
    assert "stochastic: stochastic rounding" in text
    assert text.count("taken") == 1
    found = json.loads(plan_text(plan, None))["bf16_updates"]
    assert [(one["way"], one["verdict"], one["is_taken"]) for one in found] == [
        ("master", "does not fit", False),
        ("stochastic", "fits", True),
    ]
    assert found[0]["least_bytes"] - found[1]["least_bytes"] == COPIES
    assert json.loads(plan_text(on_gpus("48G"), None))["bf16_updates"] == []


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [({}, True), ({"method": "lora"}, True), ({"bf16_updates": "stochastic"}, False)],
)
def test_copies_are_another_question_only_where_there_are_weights_in_bfloat16(
    settings: dict[str, Any], is_same: bool
) -> None:
    full = replace(FULL, train=replace(FULL.train, **settings))
    copies = replace(full, train=replace(full.train, bf16_updates="master"))
    assert (question_of(full, "cuda").key == question_of(copies, "cuda").key) == is_same
    lora = replace(CONFIG, train=replace(CONFIG.train, bf16_updates="stochastic"))
    assert question_of(lora, "cuda").key == question_of(CONFIG, "cuda").key


def run_on(
    gpu_gib: int | None, tmp_path: Path, more_bytes: int = 0, config: RunConfig = FULL
) -> tuple[PlanOfRun, io.StringIO]:
    """Return the plan of a run on such GPUs; its answers are in the cache."""
    shape = tmp_path / "model"
    shape.mkdir(exist_ok=True)
    (shape / "config.json").write_text('{"model_type": "qwen2"}')
    device: Any = "cpu" if gpu_gib is None else "cuda"
    config = replace(config, model=replace(config.model, path=str(shape)))
    for one in with_ways(config):
        keep(question_of(one, device, shape), footprint_of(one.train.bf16_updates, more_bytes))
    gpus = () if gpu_gib is None else (Gpu(0, "GPU-0", "a GPU", gpu_gib * GIB),)
    placement = Placement(device=device, num_ranks=8, source="a test", gpus=gpus)
    job = Job(config=config, sources={}, placement=placement, resume_from=None)
    (tmp_path / "run").mkdir(exist_ok=True)
    out = io.StringIO()
    console = Console(file=out, width=200)
    request = Request(profile="32b")
    return PlanOfRun(request, job, RunDir(tmp_path / "run"), console, {}, Signals()), out


def prepared_in(tmp_path: Path) -> Prepared:
    data = PreparedData(path="", num_samples=9, num_too_long=0, longest=4000, end_token_id=0)
    return Prepared(
        model_path=str(tmp_path / "model"), train=data, evaluation=None, resume_from=None
    )


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("launch.plan.of_run.this_host", lambda: host_of(500))


@pytest.mark.parametrize(
    ("gib", "asked", "way", "num_lines"),
    [
        (80, "auto", "master", 1),
        (48, "auto", "stochastic", 1),
        (None, "auto", "master", 0),
        (80, "plain", "plain", 0),  # asked for, and taken as it is
    ],
)
def test_a_run_takes_what_fits_and_the_ranks_find_it_in_the_run_folder(
    gib: int | None, asked: str, way: str, num_lines: int, tmp_path: Path, monkeypatch: Any
) -> None:
    train: Any = replace(FULL.train, bf16_updates=asked)  # type: ignore[arg-type]
    plan, out = run_on(gib, tmp_path, config=replace(FULL, train=train))
    prepared, run = prepared_in(tmp_path), RunDir(tmp_path / "run")
    write_prepared(run, prepared)
    monkeypatch.setattr("launch.run.ready.have_prepared", lambda *_: prepared)
    parts: Any = SimpleNamespace(job=None, run=run, console=None, env={}, signals=None)
    found = make_ready(parts, plan)
    assert found.bf16_updates == way
    assert read_prepared(run) == found
    said = [line for line in out.getvalue().splitlines() if "are updated by" in line]
    assert len(said) == num_lines
    assert all(f"train.bf16_updates={way}" in line for line in said)
    plan.close()


def test_a_run_that_fits_in_no_way_is_refused(tmp_path: Path) -> None:
    plan, _ = run_on(24, tmp_path)
    with pytest.raises(DoesNotFitError):
        plan.begin(prepared_in(tmp_path))
    plan.close()


def test_without_a_plan_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out = run_on(48, tmp_path)
    monkeypatch.setattr("launch.plan.tracer.kept_answer", lambda _: None)
    monkeypatch.setattr("launch.plan.of_run.Tracer", partial(Tracer, timeout_s=0.0))
    plan.begin(prepared_in(tmp_path))
    assert plan.decided() == Decided(bf16_updates="master", gradient_checkpointing=False)
    assert "no plan" in out.getvalue()
    plan.close()
