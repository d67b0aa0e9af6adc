"""Real ranks: an injected NaN and an injected jump are found at their step with their samples.

The file is also the program that the tests start, as tests/train/step/test_loop.py is.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.checkpoints import complete_checkpoints, step_of
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Prepared
from tests.models import QWEN3
from tests.train.groups import new_run, run_program, start_ranks, told
from train import worker
from train.batches.course import course_of
from train.batches.epoch_order import Order
from train.data.path_samples import prepare_path
from train.data.samples import recipes
from train.model.loss import SummedLoss
from train.model.make_checkpoint import make_checkpoint

pytestmark = pytest.mark.runs  # starts groups of real ranks

NUM_ROWS, BATCH, NUM_STEPS, BAD_STEP = 200, 4, 50, 43
LOG_EVERY, CHECKPOINT_EVERY = 8, 10
GARBAGE = "\x7f"  # only in the bad row
NUM_GARBAGE = 80  # of its tokens
HEALTHY = range(0, 20, 3)


def configured(folder: Path, data: str, **train: Any) -> RunConfig:
    config = RunConfig(profile="test", architecture=QWEN3)
    settings: dict[str, Any] = {
        "method": "full",
        "max_steps": NUM_STEPS,
        "global_batch_size": BATCH,
        "micro_batch_size": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "log_every_steps": LOG_EVERY,
        "checkpoint_every_steps": CHECKPOINT_EVERY,
        "seed": 3,
    }
    return replace(
        config,
        model=replace(config.model, dtype="float32"),
        data=replace(config.data, path=str(folder / data), max_seq_length=100),
        train=replace(config.train, **settings | train),
    )


def train_rank(run: RunDir, rank: int) -> None:
    """Train like launch.start.rank.rank; an error that ends it is kept for the test."""
    config, events = read_config(run.config), EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    if "nan" in run.run_id:
        spoil()
    try:
        worker.train(config, run, worker.load(config, run, rank), events)
    except UserError as error:
        (run.path / f"error{rank}.txt").write_text(str(error), encoding="utf-8")


def spoil() -> None:
    """Have the loss of the bad row be no number, as a broken kernel would."""
    forward = SummedLoss.forward

    def spoilt(self: SummedLoss, ids: torch.Tensor, *more: Any) -> torch.Tensor:
        loss = forward(self, ids, *more)
        is_bad = int(ids.flatten().bincount(minlength=2)[1:].max()) > NUM_GARBAGE - 10
        return loss * float("nan") if is_bad else loss

    SummedLoss.forward = spoilt  # type: ignore[assignment, method-assign]


def bad_index(config: RunConfig) -> int:
    """Return the row that comes first in the bad step."""
    return Order(course_of(config, NUM_ROWS)).step_indices(BAD_STEP - 1)[0]


def main(folder: Path) -> None:
    """Run every group of ranks that the tests below look at, one after another."""
    config, model = configured(folder, "good.jsonl"), folder / "model"
    make_checkpoint(config, model)
    good = [{"prompt": f"{i} " + "ab" * (i % 7), "response": "xyz"} for i in range(NUM_ROWS)]
    bad = [dict(row) for row in good]
    bad[bad_index(config)]["response"] = GARBAGE * NUM_GARBAGE
    for name, rows in (("good", good), ("bad", bad)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")

    def start(
        name: str, settings: RunConfig, num_ranks: int, resume_from: str | None = None
    ) -> None:
        data, _ = prepare_path(Path(settings.data.path), model, recipes(settings)[0])
        held_out = data if settings.train.early_stop_evaluations else None
        prepared = Prepared(
            model_path=str(model), train=data, evaluation=held_out, resume_from=resume_from
        )
        start_ranks(train_rank, new_run(folder, name, settings, prepared), num_ranks)

    for what in ("jump", "nan"):
        for answer in ("warn", "stop", "skip", "rollback"):
            settings = configured(folder, "bad.jsonl", on_bad_loss=answer)
            start(f"{what}-{answer}", settings, 2)
    # The first evaluation, which is the best so far, comes right after the bad step.
    patient = {"eval_every_steps": BAD_STEP, "early_stop_evaluations": 5}
    settings = configured(folder, "bad.jsonl", on_bad_loss="rollback", **patient)
    start("jump-rollback-patient", settings, 2)
    # Gone on with from right before the bad step, with other steps from there.
    before = complete_checkpoints(folder / "jump-stop" / "checkpoints")[-1]
    settings = configured(folder, "bad.jsonl", on_bad_loss="rollback", global_batch_size=8)
    start("jump-rollback-resumed", settings, 2, str(before))
    start("jump-skip-alone", configured(folder, "bad.jsonl", on_bad_loss="skip"), 1)
    for seed in HEALTHY:
        rate = (1e-4, 1e-3, 1e-2, 3e-2)[seed % 4]
        start(f"healthy{seed}", configured(folder, "good.jsonl", seed=seed, learning_rate=rate), 1)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every group of ranks has run."""
    return run_program(__file__, tmp_path_factory.mktemp("bad"))


def losses(run: Path) -> dict[int, float]:
    return {one["step"]: one["loss"] for one in told(run, "metric", "train")}


@pytest.mark.parametrize("what", ["jump", "nan"])
@pytest.mark.parametrize("answer", ["warn", "stop", "skip", "rollback"])
def test_a_bad_loss_is_found_at_its_step_with_its_samples(
    done: Path, what: str, answer: str
) -> None:
    found = told(done / f"{what}-{answer}", "mark", "loss.bad")
    assert [one["step"] for one in found] == [BAD_STEP]
    (event,) = found
    assert event["num_samples"] == BATCH
    row = bad_index(configured(done, "bad.jsonl")) + 1
    names = [(one["file"], one["row"]) for one in event["samples"]]
    assert (str(done / "bad.jsonl"), row) in names
    if what == "jump" or answer in ("stop", "skip"):  # the weights are numbers still
        assert names[0] == (str(done / "bad.jsonl"), row)
        assert f"bad.jsonl:{row}" in event["text"]
    assert event["answer"] == ("stop" if (what, answer) == ("nan", "warn") else answer)


def test_a_jump_that_is_only_said_changes_nothing(done: Path) -> None:
    (result,) = told(done / "jump-warn", "mark", "train.result")
    assert (result["result"], result["step"]) == ("done", NUM_STEPS)


@pytest.mark.parametrize("name", ["jump-stop", "nan-stop", "nan-warn"])
def test_a_run_that_stops_says_why_on_each_rank_and_keeps_good_weights(
    done: Path, name: str
) -> None:
    texts = [(done / name / f"error{rank}.txt").read_text("utf-8") for rank in (0, 1)]
    assert all(f"at step {BAD_STEP}" in text and "on_bad_loss" in text for text in texts)
    assert "bad.jsonl:" in texts[0]
    last = complete_checkpoints(done / name / "checkpoints")[-1]
    assert step_of(last) == (BAD_STEP - 1 if name.endswith("stop") else 40)


@pytest.mark.parametrize("what", ["jump", "nan"])
def test_skipping_a_step_and_going_back_from_it_give_the_same_weights(
    done: Path, what: str
) -> None:
    files = [done / f"{what}-{way}" / "model" / "model.safetensors" for way in ("skip", "rollback")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not (done / f"{what}-skip" / "error0.txt").exists()
    skipped, back = (losses(done / f"{what}-{way}") for way in ("skip", "rollback"))
    assert skipped[NUM_STEPS] == back[NUM_STEPS]


def test_the_best_so_far_is_never_one_of_a_bad_step(done: Path) -> None:
    patient, back = (losses(done / f"jump-rollback{more}") for more in ("-patient", ""))
    assert patient[NUM_STEPS] == back[NUM_STEPS]


def test_a_resumed_run_with_another_batch_goes_back_to_the_checkpoint_that_it_began_with(
    done: Path,
) -> None:
    run = done / "jump-rollback-resumed"
    assert [one["step"] for one in told(run, "mark", "loss.bad")] == [BAD_STEP]
    notes = json.loads((complete_checkpoints(run / "checkpoints")[-1] / "state.json").read_text())
    position = notes["notes"]["position"]
    rows = (BAD_STEP - 1) * BATCH + (NUM_STEPS - BAD_STEP + 1) * 8
    assert (position["epoch"], position["rows_used"]) == divmod(rows, NUM_ROWS)


def test_a_step_is_skipped_on_one_rank_as_on_two(done: Path) -> None:
    (alone,) = told(done / "jump-skip-alone", "mark", "loss.bad")
    (together,) = told(done / "jump-skip", "mark", "loss.bad")
    assert alone["loss"] == pytest.approx(together["loss"], rel=1e-4)
    one, other = losses(done / "jump-skip-alone"), losses(done / "jump-skip")
    assert one == pytest.approx(other, rel=1e-3)


def test_in_twenty_healthy_runs_nothing_is_found(done: Path) -> None:
    for seed in HEALTHY:
        assert losses(done / f"healthy{seed}")[NUM_STEPS] > 0
        assert told(done / f"healthy{seed}", "mark", "loss.bad") == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
