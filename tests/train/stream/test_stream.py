"""Real ranks that read and tokenise while they train: each row once, on any number of them.

The file is also the program that the tests start, as that of test_loop.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from ranks.group import meet
from rundir.checkpoints import complete_checkpoints
from rundir.config import RunConfig
from rundir.config_file import config_text, read_config
from rundir.control import ask
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import read_prepared, write_prepared
from tests.train.groups import run_program, start_ranks, told
from tests.train.step.test_loop import (
    BATCH,
    NUM_STEPS,
    STOP_STEP,
    WORLDS,
    configured,
    curve,
    train_rank,
)
from train.batches.course import course_of
from train.batches.feed import Feed
from train.model.make_checkpoint import make_checkpoint
from train.prepare import prepare
from train.stream.streamed_samples import StreamedSamples

pytestmark = pytest.mark.runs  # starts groups of real ranks

NUM_ROWS = 31  # five steps and a part of one
FED_STEPS = 11  # two epochs and some of a third
BAD = {5: "{", 17: '{"prompt": "p"}', 18: '{"prompt": "", "response": "r"}'}
TOO_LONG = 23


def row(number: int) -> str:
    prompt = f"{number}" + "ab" * (number % 7)
    return json.dumps({"prompt": f"{prompt}.", "response": "xyz" * (number % 4 + 1)})


def write_rows(folder: Path) -> None:
    """Write three files of different sizes: plain, compressed, and a single row."""
    folder.mkdir()
    rows = [row(i) + "\n" for i in range(NUM_ROWS)]
    (folder / "a.jsonl").write_text("".join(rows[:20]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(rows[20:30]).encode()))
    (folder / "c.jsonl").write_text(rows[30])


def streamed(folder: Path, path: Path, **data: Any) -> RunConfig:
    config = configured(folder)
    section = replace(config.data, path=str(path), streaming=True, max_seq_length=100, **data)
    return replace(config, data=section)


def new_run(folder: Path, name: str, config: RunConfig, resume_from: str | None = None) -> RunDir:
    run = RunDir(folder / name)
    for part in (run.path, run.events, run.control, run.checkpoints):
        part.mkdir()
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    write_prepared(run, prepare(run, folder / "model", resume_from))
    return run


def open_stream(run: RunDir, ranks: Any, events: EventWriter) -> tuple[StreamedSamples, Feed]:
    config = read_config(run.config)
    prepared = read_prepared(run)
    course = course_of(config, prepared.train.num_samples)
    stream = StreamedSamples(
        config=config, run=run, prepared=prepared, ranks=ranks, events=events, course=course
    )
    return stream, Feed(stream, config, ranks.rank, ranks.world_size, stream)


def feed_rank(run: RunDir, rank: int) -> None:
    """Record what a rank gets in each step, as text, and each rank's number of tokens."""
    events = EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    ranks = meet(torch.device("cpu"), events, 60.0)
    stream, feed = open_stream(run, ranks, events)
    tokenizer = Tokenizer.from_file(f"{read_prepared(run).model_path}/tokenizer.json")
    told = []
    for step in range(FED_STEPS):
        shares = feed.shares(step)
        mine = [stream[i][0].tolist() for batch in shares[ranks.rank] for row in batch for i in row]
        told.append(
            {
                "texts": [tokenizer.decode(ids) for ids in mine],
                "tokens": [
                    sum(stream.length(i) for batch in share for row in batch for i in row)
                    for share in shares
                ],
            }
        )
    stream.end()
    (run.path / f"fed{rank}.json").write_text(json.dumps(told))
    ranks.wait()


def main(folder: Path) -> None:
    """Run every group of ranks that the tests below look at, one after another."""
    rows = [{"prompt": f"{i}", "response": "xyz"} for i in range(5)]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))  # held out
    write_rows(folder / "rows")
    config = streamed(folder, folder / "rows")
    make_checkpoint(config, folder / "model")
    for world in WORLDS:
        start_ranks(feed_rank, new_run(folder, f"fed{world}", config), world)
    for world in (1, 2, 4):
        start_ranks(train_rank, new_run(folder, f"world{world}", config), world)
    stopped = new_run(folder, "stopped", config)
    ask(stopped, "stop")
    start_ranks(train_rank, stopped, 2)
    (checkpoint,) = complete_checkpoints(stopped.checkpoints)
    start_ranks(train_rank, new_run(folder, "resumed", config, str(checkpoint)), 3)
    lines = (folder / "rows" / "a.jsonl").read_text().splitlines()
    for number, text in BAD.items():
        lines[number - 1] = text
    (folder / "rows" / "a.jsonl").write_text("\n".join(lines))
    long = json.dumps({"prompt": "long" * 30, "response": "r"})
    (folder / "rows" / "c.jsonl").write_text(f"{long}\n")
    some_bad = streamed(folder, folder / "rows", on_bad_row="skip")
    start_ranks(feed_rank, new_run(folder, "bad", some_bad), 3)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every group of ranks has run."""
    return run_program(__file__, tmp_path_factory.mktemp("stream"))


def fed(run: Path, world: int) -> list[list[dict[str, Any]]]:
    """Return, for each step, what each rank has recorded."""
    ranks = [json.loads((run / f"fed{rank}.json").read_text()) for rank in range(world)]
    return [list(step) for step in zip(*ranks, strict=True)]


def numbers(step: list[dict[str, Any]]) -> list[int]:
    """Return the rows that all ranks together have, by number."""
    texts = [text for rank in step for text in rank["texts"]]
    return sorted(int("".join(itertools.takewhile(str.isdigit, text))) for text in texts)


@pytest.mark.parametrize("world", WORLDS)
def test_every_row_is_trained_once_an_epoch_and_steps_do_not_depend_on_the_number_of_ranks(
    done: Path, world: int
) -> None:
    steps = [numbers(step) for step in fed(done / f"fed{world}", world)]
    assert steps == [numbers(step) for step in fed(done / "fed1", 1)]
    assert [len(step) for step in steps] == [BATCH] * FED_STEPS
    # 31 rows by 6: an epoch ends within a step, which also has rows of the next one.
    ends = [set(itertools.chain.from_iterable(steps[:n])) for n in (5, 6)]
    assert (len(ends[0]), ends[1]) == (5 * BATCH, set(range(NUM_ROWS)))
    every = [one for step in steps for one in step]
    assert {every.count(i) for i in range(NUM_ROWS)} == {2, 3}


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_have_as_many_tokens_as_each_other(done: Path, world: int) -> None:
    for step in fed(done / f"fed{world}", world):
        tokens = step[0]["tokens"]
        assert [rank["tokens"] for rank in step] == [tokens] * world  # all know the same
        assert max(tokens) - min(tokens) <= 30  # the longest sample


@pytest.mark.parametrize("world", [2, 4])
def test_losses_are_the_same_on_any_number_of_ranks(done: Path, world: int) -> None:
    alone, together = curve(done / "world1"), curve(done / f"world{world}")
    assert [point[0] for point in alone] == list(range(1, NUM_STEPS + 1))
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    (plan,) = told(done / "world1", "mark", "train.plan")
    assert plan["num_train_samples"] == NUM_ROWS
    (mark,) = told(done / f"world{world}", "mark", "data.streamed")
    assert (mark["num_rows"], mark["num_bad"]) == (NUM_STEPS * BATCH, 0)


def test_a_run_stopped_and_resumed_on_another_number_of_ranks_follows_the_same_curve(
    done: Path,
) -> None:
    stopped, resumed = done / "stopped", done / "resumed"
    (plan,) = told(resumed, "mark", "train.plan")
    assert plan["first_step"] == STOP_STEP
    for one, other in zip(curve(done / "world1"), [*curve(stopped), *curve(resumed)], strict=True):
        assert other == pytest.approx(one, rel=1e-4)


def test_what_is_left_out_has_no_weight_and_is_counted_and_listed(done: Path) -> None:
    good, bad = fed(done / "fed1", 1), fed(done / "bad", 3)
    gone = {number - 1 for number in BAD} | {30}
    for step, other in zip(good, bad, strict=True):
        assert numbers(other) == [one for one in numbers(step) if one not in gone]
    listed = [
        json.loads(line)
        for file in sorted((done / "bad" / "data").glob("rows.rank*.bad_rows.jsonl"))
        for line in file.read_text().splitlines()
    ]
    steps = [numbers(step) for step in good]
    expected = sorted(
        (number, at + 1) for at, step in enumerate(steps) for number in BAD if number - 1 in step
    )
    assert sorted((one["row"], one["step"]) for one in listed) == expected
    assert {one["file"] for one in listed} == {str(done / "rows" / "a.jsonl")}
    assert {one["problem"] for one in listed if one["row"] == 17} == {
        "has no column `response`; its columns: prompt"
    }
    (mark,) = told(done / "bad", "mark", "data.streamed")
    assert mark["num_rows"] == FED_STEPS * BATCH
    assert mark["num_bad"] == len(expected)
    assert mark["num_too_long"] == sum(30 in step for step in steps)
    said = [event["text"] for event in told(done / "bad", "log", "line")]
    assert any(f"{len(expected):,} bad ones left out" in text for text in said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
