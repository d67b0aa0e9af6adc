"""Real ranks, real gloo: one step's gradient and a whole run are the same on any number of them.

The file is also the program that the tests start: it loads the heavy libraries once and forks every
group of ranks from there, each rank running what a rank of Airlock runs after the gate.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from ranks.group import meet
from rundir.checkpoints import complete_checkpoints
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.control import ask
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from tests.models import GPT2, NO_DROPOUT, QWEN3
from tests.train.groups import new_run, prepared_data, run_program, start_ranks, told
from train import worker
from train.batches.batch import collate
from train.batches.epoch_order import Order
from train.batches.feed import Feed
from train.data.dataset import SampleFile
from train.model.loss import SummedLoss
from train.model.make_checkpoint import make_checkpoint
from train.step.loop import Trainer
from train.step.progress import DEVICE_PARTS, HOST_PARTS, StepProgress

pytestmark = pytest.mark.runs  # starts groups of real ranks

NUM_STEPS, STOP_STEP = 6, 1
BATCH = 6  # over 4 ranks: 2, 2, 1 and 1 samples
WORLDS = [1, 2, 3, 4]
WAYS = ["padded", "packed"]
ROW_TOKENS = 32  # three rows for the first step's samples
EMPTY = {"padded": [0, 0, 1, 1], "packed": [0, 0, 0, 0]}  # micro-batches of 4 ranks
# Without the norms that most others compute in float32, whatever their input.
EXACT_ARCHITECTURE = GPT2 | NO_DROPOUT


def configured(folder: Path) -> RunConfig:
    config = RunConfig(profile="test", architecture=QWEN3)
    return replace(
        config,
        model=replace(config.model, dtype="float32"),
        data=replace(config.data, path=str(folder / "a.jsonl"), eval_path=str(folder / "a.jsonl")),
        train=replace(
            config.train,
            method="full",
            max_steps=NUM_STEPS,
            global_batch_size=BATCH,
            micro_batch_size=1,
            learning_rate=1e-2,
            warmup_steps=2,
            eval_generate=True,
            seed=3,
        ),
    )


def train_rank(run: RunDir, rank: int) -> None:
    """Train like launch.start.rank.rank once it is through the gate."""
    config, events = read_config(run.config), EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    order = noted_order((Feed, "prepare"), (StepProgress, "report"))
    worker.train(config, run, worker.load(config, run, rank), events)
    (run.path / f"order{rank}.json").write_text(json.dumps(order))


def noted_order(*methods: tuple[Any, str]) -> list[tuple[str, int]]:
    """Return a list to which each call of these methods of a step adds its name and the step."""
    order: list[tuple[str, int]] = []

    def noted(name: str, method: Any) -> Any:
        def call(of: Any, step: int) -> Any:
            order.append((name, step))
            return method(of, step)

        return call

    for owner, name in methods:
        setattr(owner, name, noted(name, getattr(owner, name)))
    return order


def gradients_rank(run: RunDir, rank: int) -> None:
    """Compute one step's accumulated gradient, in float64, and that of the whole batch at once."""
    config = read_config(run.config)
    model = worker.load(config, run, rank).double()
    events = EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    ranks = meet(torch.device("cpu"), events, 60.0)
    samples = SampleFile(read_prepared(run).train)
    feed = Feed(samples, config, ranks.rank, ranks.world_size)
    ddp = DistributedDataParallel(SummedLoss(model), gradient_as_bucket_view=True)
    trainer = Trainer(
        config=config,
        run=run,
        ranks=ranks,
        model=ddp,
        feed=feed,
        evaluator=None,
    )
    trainer.warm_up()
    batches = feed.step(0)
    (num_labels,) = ranks.sum([sum(batch.num_label_tokens for batch in batches)])
    loss_sum = float(trainer.gradients(batches, num_labels))
    accumulated = flat_gradient(model)

    model.zero_grad()
    indices = Order(feed.course).step_indices(0)
    whole = collate([samples[i] for i in indices])
    whole_loss = SummedLoss(model)(*whole.arguments()) / whole.num_label_tokens
    whole_loss.backward()
    torch.save(
        {
            "accumulated": accumulated,
            "whole": flat_gradient(model),
            "loss_sum": loss_sum,
            "whole_loss": float(whole_loss),
            "num_labels": num_labels,
            "num_batches": len(batches),
            "num_empty": sum(batch.num_input_tokens == 0 for batch in batches),
        },
        run.path / f"gradients{rank}.pt",
    )
    ranks.wait()


def flat_gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten().clone() for p in model.parameters()])


def main(folder: Path) -> None:
    """Run every group of ranks that the tests below look at, one after another."""
    config = configured(folder)
    rows = [
        {"prompt": f"{i} " + "ab" * (i % 7), "response": "xyz" * (i % 4 + 1)} for i in range(11)
    ]
    plain = prepared_data(folder, config, rows)
    exact = replace(config, architecture=EXACT_ARCHITECTURE)
    make_checkpoint(exact, folder / "exact")
    of_exact = replace(plain, model_path=str(folder / "exact"))
    for size, way in itertools.product((1, 2, 4), WAYS):
        settings = replace(
            exact,
            data=replace(exact.data, packing=way == "packed", max_seq_length=ROW_TOKENS),
            train=replace(exact.train, micro_batch_size=size),
        )
        for world in WORLDS:
            run = new_run(folder, f"gradients-{way}-{size}-{world}", settings, of_exact)
            start_ranks(gradients_rank, run, world)
    for world in (1, 2, 4):
        start_ranks(train_rank, new_run(folder, f"world{world}", config, plain), world)
    sharded = replace(config, train=replace(config.train, shard_optimizer=True))
    for prefix, settings in (("", config), ("sharded-", sharded)):
        stopped = new_run(folder, f"{prefix}stopped", settings, plain)
        ask(stopped, "stop")
        start_ranks(train_rank, stopped, 2)
        (checkpoint,) = complete_checkpoints(stopped.checkpoints)
        resumed = replace(plain, resume_from=str(checkpoint))
        start_ranks(train_rank, new_run(folder, f"{prefix}resumed", settings, resumed), 3)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every group of ranks has run."""
    return run_program(__file__, tmp_path_factory.mktemp("loop"))


def curve(run: Path) -> list[tuple[float, float, float]]:
    """Return (step, loss, gradient norm) of each step."""
    events = told(run, "metric", "train")
    return [(event["step"], event["loss"], event["grad_norm"]) for event in events]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_of_all_ranks_is_that_of_the_whole_batch_at_once(
    done: Path, world_size: int, micro_batch_size: int, way: str
) -> None:
    run = done / f"gradients-{way}-{micro_batch_size}-{world_size}"
    results = [torch.load(run / f"gradients{rank}.pt") for rank in range(world_size)]
    whole = results[0]["whole"]
    assert whole.dtype == torch.float64
    assert whole.norm() > 0.1
    for result in results:
        assert (result["accumulated"] - whole).norm() < 1e-12 * whole.norm()
    loss = sum(result["loss_sum"] for result in results) / results[0]["num_labels"]
    assert loss == pytest.approx(results[0]["whole_loss"], rel=1e-6)
    numbers = {result["num_batches"] for result in results}
    if (world_size, micro_batch_size) == (4, 1):
        assert sorted(result["num_empty"] for result in results) == EMPTY[way]
    if (world_size, micro_batch_size) == (1, 1):
        assert numbers == {BATCH if way == "padded" else 3}  # accumulated


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_same_data_give_the_same_curve_on_any_number_of_ranks(
    done: Path, world_size: int
) -> None:
    alone, together = curve(done / "world1"), curve(done / f"world{world_size}")
    assert [point[0] for point in alone] == list(range(1, NUM_STEPS + 1))
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert alone[-1][1] < 0.7 * alone[0][1]  # and it learns


@pytest.mark.parametrize("prefix", ["", "sharded-"])
def test_a_run_stopped_and_resumed_on_another_number_of_ranks_follows_the_same_curve(
    done: Path, prefix: str
) -> None:
    stopped, resumed = done / f"{prefix}stopped", done / f"{prefix}resumed"
    (result,) = told(stopped, "mark", "train.result")
    assert (result["result"], result["step"]) == ("stopped", STOP_STEP)
    assert not (stopped / "model").exists()
    (plan,) = told(resumed, "mark", "train.plan")
    assert (plan["first_step"], plan["total_steps"]) == (STOP_STEP, NUM_STEPS)
    for one, other in zip(curve(done / "world1"), [*curve(stopped), *curve(resumed)], strict=True):
        assert other == pytest.approx(one, rel=1e-4)


def test_each_rank_has_and_saves_the_states_of_other_parameters_if_they_are_shared_out(
    done: Path,
) -> None:
    (checkpoint,) = complete_checkpoints(done / "sharded-stopped" / "checkpoints")
    files = sorted(checkpoint.glob("optimizer-*.pt"))
    shares = [set(torch.load(file, weights_only=True)) for file in files]
    assert len(shares) == 2
    assert all(shares)
    assert not shares[0] & shares[1]
    (whole,) = complete_checkpoints(done / "stopped" / "checkpoints")
    (file,) = whole.glob("optimizer-*.pt")
    assert shares[0] | shares[1] == set(torch.load(file, weights_only=True))


@pytest.mark.parametrize("name", ["world2", "world4", "resumed"])
def test_every_held_out_sample_is_evaluated_exactly_once(done: Path, name: str) -> None:
    alone, other = (told(done / run, "metric", "eval") for run in ("world1", name))
    assert len(alone) == len(other) == 2
    assert other[-1]["loss"] == pytest.approx(alone[-1]["loss"], rel=1e-4)
    (snapshot,) = (done / name).glob(f"evolution/a/step_{NUM_STEPS:08d}.json")
    examples = json.loads(snapshot.read_text(encoding="utf-8"))["examples"]
    assert [example["example_id"] for example in examples] == list(range(11))
    expected = json.loads((done / "world1" / snapshot.relative_to(done / name)).read_text("utf-8"))
    answers = [example["model_output"] for example in examples]
    assert answers == [example["model_output"] for example in expected["examples"]]


@pytest.mark.parametrize(("name", "world_size"), [("world1", 1), ("world4", 4), ("resumed", 3)])
def test_every_rank_tells_its_way_and_only_the_first_what_is_told_once(
    done: Path, name: str, world_size: int
) -> None:
    for span in ("all_loaded.wait", "pg.init", "ddp.wrap", "eval"):
        ranks = {event["rank"] for event in told(done / name, "end", span)}
        assert ranks == set(range(world_size)), span
    for kind, once in (("metric", "train"), ("end", "checkpoint"), ("end", "export")):
        assert {event["rank"] for event in told(done / name, kind, once)} == {0}
    (result,) = told(done / name, "mark", "train.result")
    assert (result["result"], result["step"]) == ("done", NUM_STEPS)
    assert (done / name / result["checkpoint"] / "COMPLETE").is_file()
    assert (done / name / "model" / "model.safetensors").is_file()


def test_every_part_of_a_step_is_timed_and_a_cpu_has_no_mfu(done: Path) -> None:
    metrics = told(done / "world2", "metric", "train")
    assert len(metrics) == NUM_STEPS
    for metric in metrics:
        assert metric["mfu"] is None
        parts = {*HOST_PARTS, *DEVICE_PARTS}
        parts -= {"data"} if metric["step"] == NUM_STEPS else set()  # they came a step before
        assert all(metric[f"time_{part}_s"] > 0 for part in parts)
    (result,) = told(done / "world2", "mark", "train.result")
    assert (result["mfu"], result["hfu"], result["gpu_peak_bytes"]) == (None, None, None)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_next_steps_data_are_there_before_a_report_waits_for_the_device(
    done: Path, rank: int
) -> None:
    order = json.loads((done / "world2" / f"order{rank}.json").read_text())
    steps = range(1, NUM_STEPS)
    wanted = [[name, step] for step in steps for name in ("prepare", "report")]
    assert order[: len(wanted)] == wanted
    assert all(name == "report" for name, _ in order[len(wanted) :])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
