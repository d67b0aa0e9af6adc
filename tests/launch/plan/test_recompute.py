"""How many blocks are recomputed: as few as fit, where that is left to the plan."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from launch.plan.plan import Plan
from launch.plan.planning import plan_text
from launch.plan.question import question_of
from launch.plan.recompute import recomputing
from launch.plan.show import show_plan
from launch.plan.target import Target
from launch.plan.tracer import keep
from launch.plan.ways import Decided, Ways
from launch.run.ready import make_ready
from rundir.config import RunConfig
from rundir.footprint import Footprint
from rundir.paths import RunDir
from rundir.prepared import read_prepared, write_prepared
from rundir.units import GIB
from tests.launch.plan.made import CONFIG, FOOTPRINT, FULL, host_of, on_gpus
from tests.launch.plan.test_updates import prepared_in, run_on

NUM_BLOCKS = 10
AUTO = recomputing(CONFIG, blocks="auto")  # type: ignore[arg-type]
H100 = on_gpus("H100").target
NOT_KNOWN = replace(H100, gpu=None)


def footprint_of(config: RunConfig, block_gib: float, num_blocks: int = NUM_BLOCKS) -> Footprint:
    """Return what was traced: a block that is not recomputed keeps `block_gib`, others 1 MiB."""
    kept = 2**20 if config.model.gradient_checkpointing else int(block_gib * GIB)
    copies = (
        20 * GIB if config.train.bf16_updates == "master" and config.train.method == "full" else 0
    )
    return replace(
        FOOTPRINT,
        optimizer_bytes=FOOTPRINT.optimizer_bytes + copies,
        activations_bytes=FOOTPRINT.activations_bytes + NUM_BLOCKS * kept,
        peak_bytes=FOOTPRINT.peak_bytes + copies + NUM_BLOCKS * kept,
        num_blocks=num_blocks,
        block_bytes=kept if num_blocks else 0,
    )


def plan_of(
    config: RunConfig, target: Target, block_gib: float, num_blocks: int = NUM_BLOCKS
) -> Plan:
    ways, base = Ways(config, target), replace(on_gpus("H100"), target=target)
    footprints = [footprint_of(traced, block_gib, num_blocks) for traced in ways.traced]
    return ways.chosen(
        footprints,
        lambda traced, footprint: replace(base, config=traced, footprint=footprint),
    )


# A rank needs 24 to 28 GiB without what blocks keep, of 79.
@pytest.mark.parametrize(
    ("block_gib", "num", "setting"),
    [(1, 0, False), (8, 5, 5), (45, 9, 9), (60, 10, True)],
)
def test_as_few_blocks_are_recomputed_as_fit(
    block_gib: float, num: int, setting: bool | int
) -> None:
    plan = plan_of(AUTO, H100, block_gib)
    assert plan.config.model.gradient_checkpointing is setting
    assert plan.num_recomputed == num
    assert plan.gpu_verdict == "fits"
    kept = int(block_gib * GIB) if num < NUM_BLOCKS else 2**20
    more = num * 2**20 + (NUM_BLOCKS - num) * kept
    assert plan.footprint.activations_bytes == FOOTPRINT.activations_bytes + more
    assert plan.footprint.peak_bytes == FOOTPRINT.peak_bytes + more
    fewer = plan_of(recomputing(CONFIG, blocks=max(2, num - 1)), H100, block_gib)
    assert num < 3 or fewer.gpu_verdict != "fits"
    out = io.StringIO()
    show_plan(Console(file=out, width=120), plan)
    assert f"{num} of 10 blocks are recomputed in backward" in out.getvalue()
    assert json.loads(plan_text(plan, None))["recomputed_blocks"] == num


@pytest.mark.parametrize(
    ("asked", "traced", "num"),
    [(False, [False], 0), (True, [True], 10), (3, [False, True], 3), (99, [False, True], 10)],
)
def test_what_was_asked_for_is_planned_whether_it_fits_or_not(
    asked: bool | int, traced: list[bool], num: int
) -> None:
    config = recomputing(CONFIG, blocks=asked)
    ways = Ways(config, H100)
    assert [one.model.gradient_checkpointing for one in ways.traced] == traced
    assert not ways.are_open  # nothing has to wait for the plan
    plan = plan_of(config, H100, block_gib=500)
    assert plan.num_recomputed == num
    assert plan.gpu_verdict == ("fits" if num == NUM_BLOCKS else "does not fit")


def test_all_are_recomputed_where_no_gpu_is_known_and_without_a_plan() -> None:
    ways = Ways(AUTO, NOT_KNOWN)
    assert [one.model.gradient_checkpointing for one in ways.traced] == [True]
    assert plan_of(AUTO, NOT_KNOWN, block_gib=1).num_recomputed == NUM_BLOCKS
    assert not ways.are_open
    assert Ways(AUTO, H100).are_open
    everything = Decided(bf16_updates="master", gradient_checkpointing=True)
    assert Ways(AUTO, NOT_KNOWN).decided(None) == Ways(AUTO, H100).decided(None) == everything


@pytest.mark.parametrize(("block_gib", "setting"), [(1, False), (8, True)])
def test_it_is_none_or_all_where_blocks_are_not_alike(block_gib: float, setting: bool) -> None:
    plan = plan_of(AUTO, H100, block_gib, num_blocks=0)
    assert plan.config.model.gradient_checkpointing is setting
    assert plan.num_recomputed == (None if setting else 0)
    asked = plan_of(recomputing(CONFIG, blocks=3), H100, block_gib, num_blocks=0)
    none = plan_of(recomputing(CONFIG, blocks=False), H100, block_gib, num_blocks=0)
    assert (asked.num_recomputed, asked.footprint) == (None, none.footprint)


# With copies 44 to 50 GiB without what blocks keep.
@pytest.mark.parametrize(("block_gib", "num"), [(1, 0), (4, 3), (45, 10)])
def test_copies_of_weights_come_before_fewer_recomputed_blocks(block_gib: float, num: int) -> None:
    auto = recomputing(FULL, blocks="auto")  # type: ignore[arg-type]
    plan = plan_of(auto, H100, block_gib)
    assert (plan.config.train.bf16_updates, plan.num_recomputed) == ("master", num)
    assert [update.way for update in plan.updates] == ["master", "stochastic"]
    decided = Ways(auto, H100).decided(plan)
    assert decided.bf16_updates == "master"
    assert decided.gradient_checkpointing == plan.config.model.gradient_checkpointing


def test_the_ranks_find_the_number_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("launch.plan.of_run.this_host", lambda: host_of(500))
    plan, out = run_on(80, tmp_path, config=AUTO)
    shape = tmp_path / "model"
    config = replace(AUTO, model=replace(AUTO.model, path=str(shape)))
    for traced in Ways(config, H100).traced:
        keep(question_of(traced, "cuda", shape), footprint_of(traced, block_gib=8))
    prepared, run = prepared_in(tmp_path), RunDir(tmp_path / "run")
    write_prepared(run, prepared)
    monkeypatch.setattr("launch.run.ready.have_prepared", lambda *_: prepared)
    parts: Any = SimpleNamespace(job=None, run=run, console=None, env={}, signals=None)
    assert make_ready(parts, plan).recomputed == read_prepared(run).recomputed == 4
    assert "plan: 4 of 10 blocks are recomputed in backward" in out.getvalue()
    plan.close()


def test_a_question_is_about_all_blocks_or_none() -> None:
    asked: list[bool | int | str] = [True, "auto", 7]
    questions = [question_of(recomputing(CONFIG, blocks=one), "cuda") for one in asked]  # type: ignore[arg-type]
    assert len({question.key for question in questions}) == 1
    assert all(one.config.model.gradient_checkpointing is True for one in questions)
