"""A stream in one process: what ends it, what it leaves out, and what it tells other ranks."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ranks.group import Alone
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.events import EventWriter
from tests.model_tokenizers import auto, ids
from tests.train.step.test_loop import BATCH, configured
from tests.train.stream.test_stream import new_run, open_stream, row, streamed
from train.batches.batch import IGNORE
from train.batches.feed import Feed
from train.data.samples import Counts
from train.files.served import file_tokenizer
from train.model.make_checkpoint import make_checkpoint
from train.stream.step_share import Share, joined, sample_of
from train.stream.streamed_samples import Ahead, StreamedSamples


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(configured(folder), folder / "model")
    return folder / "model"


@pytest.fixture
def alone(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model, for runs of this process."""
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_text(row(1) + "\n")
    shutil.copytree(checkpoint, tmp_path / "model")
    return tmp_path


def stream_of(folder: Path, config: RunConfig) -> tuple[StreamedSamples, Feed]:
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


def test_rows_get_the_ids_of_the_models_class_which_is_the_same_on_all_nodes(alone: Path) -> None:
    config = json.loads((alone / "model/config.json").read_text("utf-8"))
    text = json.dumps(config | {"model_type": "qwen3_5"})  # it composes characters
    (alone / "model/config.json").write_text(text, encoding="utf-8")
    (alone / "a.jsonl").write_text('{"text": "e\\u0301"}\n' * BATCH)
    run = new_run(alone, "run", streamed(alone, alone / "a.jsonl"))
    ranks, events = Alone(torch.device("cpu")), EventWriter(run.event_file("rank0"), rank=0)
    stream, feed = open_stream(run, ranks, events)
    feed.step(0)
    theirs = ids(auto(alone / "model"), "e\u0301")
    assert theirs != ids(file_tokenizer(alone / "model"), "e\u0301")
    assert stream[0][0].tolist()[: len(theirs)] == theirs
    stream.end()
    (alone / "model/config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="when the data were tried"):
        open_stream(run, ranks, events)


def test_what_ranks_tell_each_other_is_joined_in_the_order_of_the_step() -> None:
    def at(place: int, *ids: int) -> tuple[int, bytes, bytes]:
        ranges = np.array([[1, 2], [3, len(ids)]], np.int32)
        return place, np.array(ids, np.int32).tobytes(), ranges.tobytes()

    first = Share(
        samples=[at(0, 1, 2, 3, 4), at(2, 9, 8, 7, 6, 5)],
        counts=Counts(num_rows=3, num_bad=1),
    )
    second = Share(samples=[at(1, 5, 5, 5, 5)], counts=Counts(num_rows=1, num_too_long=2))
    found = joined([first, Share(), second])
    assert [place for place, *_ in found.samples] == [0, 1, 2]
    samples = [sample_of(ids, ranges) for _, ids, ranges in found.samples]
    assert [ids.tolist() for ids, _ in samples] == [
        [1, 2, 3, 4],
        [5, 5, 5, 5],
        [9, 8, 7, 6, 5],
    ]
    assert samples[2][1].tolist() == [[1, 2], [3, 5]]
    counts = found.counts
    assert (counts.num_rows, counts.num_bad, counts.num_too_long) == (4, 1, 2)
    assert found.error is None


def test_of_errors_of_several_ranks_all_raise_the_first() -> None:
    errors = [UserError(f"größe {i}", do=f"do {i}", code=ExitCode.DATA) for i in range(2)]
    shares = [Share(), *(Share(error=error) for error in errors), Share()]
    found = joined(shares).error
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
