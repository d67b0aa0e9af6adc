"""The evolution tracker in groups of real ranks: what it writes, and that it harms no training.

The file is also the program that the tests start (see tests/train/step/test_loop.py).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rundir.config_file import read_config
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedData, write_prepared
from tests.train.groups import new_run, run_program, start_ranks, told
from tests.train.step.test_loop import configured, curve, train_rank
from train import worker
from train.data.path_samples import prepare_file
from train.evaluation.answering import Answerer
from train.evaluation.snapshot import Snapshots
from train.model.make_checkpoint import make_checkpoint

pytestmark = pytest.mark.runs  # starts groups of real ranks

NUM_STEPS, BAD_STEP = 12, 10
WORDS = ("echo", "last", "upper")


def fails_rank(run: RunDir, rank: int) -> None:
    """Train, and fail on rank 1 where it answers after `BAD_STEP` steps."""
    inner: Callable[..., Any] = Answerer.examples

    def examples(self: Answerer, indices: Any, step: int, losses: Any) -> Any:
        if rank == 1 and step == BAD_STEP:
            raise RuntimeError("out of memory, say")
        return inner(self, indices, step, losses)

    Answerer.examples = examples  # type: ignore[method-assign]
    config, events = read_config(run.config), EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    worker.train(config, run, worker.load(config, run, rank), events)


def main(folder: Path) -> None:
    """Run every group of ranks that the tests below look at, one after another."""
    rows = [
        {"prompt": f"{WORDS[i % 3]} {'ab' * (i % 5 + 1)}{i}", "response": f"b{i}"}
        for i in range(11)
    ]
    config = configured(folder)
    config = replace(
        config,
        train=replace(
            config.train,
            max_steps=NUM_STEPS,
            eval_generate=False,
            evolution_prompts=7,
            evolution_share=100.0,
        ),
    )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path(config.data.path).write_text(text, encoding="utf-8")
    model = folder / "model"
    make_checkpoint(config, model)
    data = prepare_file(Path(config.data.path), model, 0, 100)
    prepared = Prepared(model_path=str(model), train=data, evaluation=data, resume_from=None)
    for world_size in (1, 4):
        start_ranks(train_rank, new_run(folder, f"world{world_size}", config, prepared), world_size)
    start_ranks(fails_rank, new_run(folder, "fails", config, prepared), 2)
    no_place = new_run(folder, "no place", config, prepared)
    (no_place.path / "evolution").write_text("a file, where a folder should be")
    start_ranks(train_rank, no_place, 2)
    off = replace(config, train=replace(config.train, evolution_prompts=0))
    start_ranks(train_rank, new_run(folder, "off", off, prepared), 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every group of ranks has run."""
    return run_program(__file__, tmp_path_factory.mktemp("tracker"))


def snapshots(run: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(run.glob("evolution/a/step_*.json"))]
    return {one["training_step"]: one for one in found}


def test_a_snapshot_has_every_prompt_in_full_with_its_answer_loss_and_model(done: Path) -> None:
    found = snapshots(done / "world1")
    assert list(found) == [0, 10, 12]
    one = found[10]
    assert one["snapshot_id"] == "step_00000010"
    assert one["dataset"]["name"] == "a"
    assert len(one["dataset"]["hash"]) == 16
    assert one["model_version"] == {
        "run": "world1",
        "step": 10,
        "checkpoint": None,
        "base": one["model_version"]["base"],
    }
    assert one["cost"]["seconds"] > 0
    assert one["left_out_steps"] == []
    assert [row["example_id"] for row in one["examples"]] == [0, 1, 3, 4, 6, 7, 9]
    for row in one["examples"]:
        assert row["input"].split()[0] in WORDS
        assert row["expected_output"].startswith("b")
        assert row["loss"] > 0
        assert row["output_length"] == len(row["model_output"])
    assert one["summary"]["total_examples"] == 7
    assert one["summary"]["avg_loss"] == pytest.approx(
        sum(row["loss"] for row in one["examples"]) / 7
    )
    assert found[12]["summary"]["avg_loss"] < found[0]["summary"]["avg_loss"]
    events = told(done / "world1", "metric", "evolution")
    assert [event["step"] for event in events] == [0, 10, 12]


def test_four_ranks_write_the_same_snapshots_as_one(done: Path) -> None:
    alone, four = snapshots(done / "world1"), snapshots(done / "world4")
    assert list(alone) == list(four)
    for step, one in alone.items():
        assert one["dataset"] == four[step]["dataset"]
        assert one["summary"]["correct"] == four[step]["summary"]["correct"]
        assert len(one["examples"]) == 7
        for row, other in zip(one["examples"], four[step]["examples"], strict=True):
            same = ["example_id", "input", "expected_output", "model_output", "exact_match"]
            same += ["step", "similarity", "output_length"]
            assert [row[key] for key in same] == [other[key] for key in same]
            assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_it_changes_nothing_of_the_training(done: Path) -> None:
    assert curve(done / "fails") == curve(done / "off") == curve(done / "no place")
    assert not (done / "off/evolution").exists()


def test_a_rank_that_cannot_answer_is_told_of_and_training_goes_on(done: Path) -> None:
    assert list(snapshots(done / "fails")) == [0, 12]
    (missing,) = told(done / "fails", "mark", "evolution.missing")
    assert missing["step"] == BAD_STEP
    assert missing["why"] == "rank 1: RuntimeError: out of memory, say"
    lines = [event["text"] for event in told(done / "fails", "log", "line")]
    assert any("the answers after step 10 are missing: rank 1: " in line for line in lines)


def test_answers_that_cannot_be_written_are_told_of_and_training_goes_on(done: Path) -> None:
    missing = told(done / "no place", "mark", "evolution.missing")
    assert [event["step"] for event in missing] == [0, 10, 12]
    assert len(curve(done / "no place")) == NUM_STEPS


def _write_on(run: RunDir, data: PreparedData) -> None:
    row = {"example_id": 0, "loss": 1.0, "exact_match": False, "similarity": 0.5}
    rows = [row | {"example_id": i, "model_output": "x" * 1000} for i in range(200)]
    written = Snapshots(run, "a", data)
    for step in range(10_000):
        written.write(step % 3, rows, seconds=0.1)


def test_a_snapshot_whose_writer_is_killed_is_whole_or_absent(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    data = PreparedData(path="a", num_samples=1, num_too_long=0, longest=1, end_token_id=0)
    write_prepared(run, Prepared(model_path="m", train=data, evaluation=data, resume_from=None))
    for number in range(20):
        writer = multiprocessing.get_context("fork").Process(target=_write_on, args=(run, data))
        writer.start()
        time.sleep(0.01 + 0.005 * number)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        for one in snapshots(run.path).values():
            assert one["summary"]["total_examples"] == 200
    assert snapshots(run.path)


def test_a_loss_that_is_no_number_is_written_by_its_name(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    data = PreparedData(path="a", num_samples=1, num_too_long=0, longest=1, end_token_id=0)
    write_prepared(run, Prepared(model_path="m", train=data, evaluation=data, resume_from=None))
    row = {"example_id": 0, "loss": float("nan"), "exact_match": False, "similarity": 0.5}
    rows = [row, row | {"example_id": 1, "loss": float("inf")}]
    Snapshots(run, "a", data).write(3, rows, seconds=0.1)
    text = run.evolution("a", 3).read_text()
    one = json.loads(text, parse_constant=pytest.fail)
    assert [row["loss"] for row in one["examples"]] == ["nan", "inf"]
    assert one["summary"]["avg_loss"] == "nan"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
