"""Real ranks that read and tokenise while they train: each row once, on any number of them.

The file is also the program that the tests start, as that of test_loop.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from rundir.checkpoints import complete_checkpoints
from rundir.config import RunConfig
from rundir.config_file import config_text, read_config
from rundir.control import ask
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import read_prepared, write_prepared
from tests.train.test_loop import (
    BATCH,
    NUM_STEPS,
    STOP_STEP,
    WORLDS,
    configured,
    curve,
    start_ranks,
    told,
    train_rank,
)
from train.ahead import Ahead
from train.batch import IGNORE
from train.data import Sample
from train.feed import Feed
from train.make_checkpoint import make_checkpoint
from train.prepare import prepare
from train.ranks import Alone, meet
from train.stream import Stream
from train.stream_share import Share, joined
from train.tokenise import Counts

NUM_ROWS = 31  # five steps and a part of one
FED_STEPS = 11  # two epochs and some of a third
BAD = {5: "{", 17: '{"prompt": "p"}', 18: '{"prompt": "", "response": "r"}'}
TOO_LONG = 23


def row(number: int) -> str:
    prompt = f"{number}" + "ab" * (number % 7)
    return json.dumps({"prompt": f"{prompt}.", "response": "xyz" * (number % 4 + 1)})


def write_rows(folder: Path) -> None:
    """Three files of unlike size: plain, compressed, and one row alone."""
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


def open_stream(run: RunDir, ranks: Any, events: EventWriter) -> tuple[Stream, Feed]:
    config = read_config(run.config)
    stream = Stream(config=config, run=run, prepared=read_prepared(run), ranks=ranks, events=events)
    return stream, Feed(stream, config, ranks.rank, ranks.world_size, stream)


def feed_rank(run: RunDir, rank: int) -> None:
    """What a rank gets of each step, as text, and how many tokens each rank has."""
    events = EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    ranks = meet(torch.device("cpu"), events, 60.0)
    stream, feed = open_stream(run, ranks, events)
    tokenizer = Tokenizer.from_file(f"{read_prepared(run).model_path}/tokenizer.json")
    told = []
    for step in range(FED_STEPS):
        hands = feed.hands(step)
        mine = [stream[i][0].tolist() for batch in hands[ranks.rank] for row in batch for i in row]
        told.append({
            "texts": [tokenizer.decode(ids) for ids in mine],
            "tokens": [
                sum(stream.length(i) for batch in hand for row in batch for i in row)
                for hand in hands
            ],
        })  # fmt: skip
    stream.end()
    (run.path / f"fed{rank}.json").write_text(json.dumps(told))
    ranks.wait()


def main(folder: Path) -> None:
    """Every group of ranks that the tests below look at, one after the other."""
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
    """The folder in which every group of ranks has run."""
    folder = tmp_path_factory.mktemp("stream")
    root = str(Path(__file__).resolve().parents[2])
    env = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                        "AIRLOCK_CACHE_DIR": str(folder / "cache")}  # fmt: skip
    subprocess.run([sys.executable, "-P", __file__, str(folder)], env=env, check=True)
    return folder


def fed(run: Path, world: int) -> list[list[dict[str, Any]]]:
    """For each step, what each rank has told."""
    ranks = [json.loads((run / f"fed{rank}.json").read_text()) for rank in range(world)]
    return [list(step) for step in zip(*ranks, strict=True)]


def numbers(step: list[dict[str, Any]]) -> list[int]:
    """The rows that all ranks together have, by their numbers."""
    texts = [text for rank in step for text in rank["texts"]]
    return sorted(int("".join(itertools.takewhile(str.isdigit, text))) for text in texts)


@pytest.mark.parametrize("world", WORLDS)
def test_every_row_is_trained_once_an_epoch_and_steps_do_not_depend_on_the_number_of_ranks(
    done: Path, world: int
) -> None:
    steps = [numbers(step) for step in fed(done / f"fed{world}", world)]
    assert steps == [numbers(step) for step in fed(done / "fed1", 1)]
    assert [len(step) for step in steps] == [BATCH] * FED_STEPS
    # 31 rows by 6: an epoch ends within a step, which has rows of the next one too.
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


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, for runs of this process."""
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_text(row(1) + "\n")
    make_checkpoint(configured(tmp_path), tmp_path / "model")
    return tmp_path


def stream_of(folder: Path, config: RunConfig) -> tuple[Stream, Feed]:
    run = new_run(folder, "run", config)
    events = EventWriter(run.event_file("rank0"), rank=0)
    return open_stream(run, Alone(torch.device("cpu")), events)


def go_on(feed: Feed, first: int, done: list[int]) -> None:
    """Take steps, for ever."""
    for step in itertools.count(first):
        feed.step(step)
        done.append(step)


def is_reading() -> bool:
    return any(thread.name == "data" for thread in threading.enumerate())


def test_a_bad_row_ends_the_run_when_its_turn_comes_and_not_before(alone: Path) -> None:
    path = alone / "rows.jsonl"
    path.write_text("".join(row(i) + "\n" for i in range(300)) + "{\n" + row(0) + "\n")
    stream, feed = stream_of(alone, streamed(alone, path))
    done: list[int] = []
    with pytest.raises(UserError, match=f"{path}:301: the row is not valid JSON") as raised:
        go_on(feed, 0, done)
    assert raised.value.code == ExitCode.DATA
    assert 0 < len(done) < 302 / BATCH
    with pytest.raises(UserError, match=f"{path}:301"):  # and it stays so
        feed.step(len(done) + 1)
    stream.end()
    assert not is_reading()


def test_a_step_of_bad_rows_alone_is_an_empty_micro_batch(alone: Path) -> None:
    path = alone / "rows.jsonl"
    path.write_text(row(0) + "\n" + "{\n" * 5)
    config = streamed(alone, path, on_bad_row="skip")
    each = replace(config, train=replace(config.train, global_batch_size=1))
    stream, feed = stream_of(alone, each)
    batches = [feed.step(step) for step in range(6)]
    assert [len(some) for some in batches] == [1] * 6
    assert sorted(batch.num_input_tokens > 0 for (batch,) in batches) == [False] * 5 + [True]
    empty = next(batch for (batch,) in batches if not batch.num_input_tokens)
    assert (empty.labels == IGNORE).all()
    stream.end()


def test_a_file_that_shrinks_is_said_at_the_next_reading(alone: Path) -> None:
    path = alone / "rows.jsonl"
    path.write_text("".join(row(i) + "\n" for i in range(12)))
    stream, feed = stream_of(alone, streamed(alone, path))
    feed.step(0)
    path.write_text(row(0))
    with pytest.raises(UserError, match=f"{path} has .* bytes, it had"):
        go_on(feed, 1, [])
    stream.end()


def test_steps_can_be_asked_for_in_any_order(alone: Path) -> None:
    path = alone / "rows.jsonl"
    path.write_text("".join(row(i) + "\n" for i in range(50)))
    stream, feed = stream_of(alone, streamed(alone, path))
    in_order = [feed.step(step)[0].input_ids.tolist() for step in range(8)]
    for step in (5, 6, 2, 7, 0):
        assert feed.step(step)[0].input_ids.tolist() == in_order[step]
    stream.end()
    assert not is_reading()


def test_a_token_that_the_model_does_not_know_is_said_before_it_is_trained_on(alone: Path) -> None:
    path = alone / "rows.jsonl"
    path.write_text(row(0))
    stream, feed = stream_of(alone, streamed(alone, path))
    settings = json.loads((alone / "model" / "config.json").read_text())
    (alone / "model" / "config.json").write_text(json.dumps(settings | {"vocab_size": 200}))
    with pytest.raises(UserError, match="the model knows ids below 200"):
        feed.step(0)
    stream.end()


def test_what_ranks_tell_each_other_is_joined_in_the_order_of_the_step() -> None:
    def sample(*ids: int) -> Sample:
        return np.array(ids, np.int32), np.array([[1, 2], [3, len(ids)]], np.int32)

    first = Share(samples=[(0, sample(1, 2, 3, 4)), (2, sample(9, 8, 7, 6, 5))],
                  counts=Counts(num_rows=3, num_bad=1))  # fmt: skip
    second = Share(samples=[(1, sample(5, 5, 5, 5))], counts=Counts(num_rows=1, num_too_long=2))
    found = joined([one.packed() for one in (first, Share(), second)])
    assert [place for place, _ in found.samples] == [0, 1, 2]
    assert [ids.tolist() for _, (ids, _) in found.samples] == [
        [1, 2, 3, 4], [5, 5, 5, 5], [9, 8, 7, 6, 5],
    ]  # fmt: skip
    assert found.samples[2][1][1].tolist() == [[1, 2], [3, 5]]
    counts = found.counts
    assert (counts.num_rows, counts.num_bad, counts.num_too_long) == (4, 1, 2)
    assert found.error is None


def test_of_errors_of_several_ranks_all_raise_the_first() -> None:
    errors = [UserError(f"größe {i}", do=f"do {i}", code=ExitCode.DATA) for i in range(2)]
    shares = [Share(), *(Share(error=error) for error in errors), Share()]
    found = joined([one.packed() for one in shares]).error
    assert found is not None
    assert (str(found), found.code) == (str(errors[0]), ExitCode.DATA)


def test_what_is_made_ahead_is_no_more_than_was_asked_for_and_ends_with_its_taker() -> None:
    made: list[int] = []
    closed = threading.Event()

    def items() -> Generator[int]:
        try:
            for i in itertools.count():
                made.append(i)
                yield i
        finally:
            closed.set()

    ahead = Ahead(items(), 3)
    assert [ahead.next() for _ in range(5)] == list(range(5))
    ahead.close()
    assert closed.is_set()
    assert len(made) <= 5 + 3 + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
