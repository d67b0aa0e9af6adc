"""The samples that a rank takes, their padding, and that their pages are the file's own."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rundir.prepared import PreparedData
from tests.conftest import ROOT
from tests.running import python
from train.batches.batch import IGNORE, collate
from train.batches.course import Course, Draw
from train.batches.epoch_order import Order, permutation
from train.data.dataset import Sample, SampleFile, prompted
from train.data.samples import SCHEMA

NUM_SAMPLES, BATCH = 10, 7  # steps span epochs, and neither divides among ranks
NUM_STEPS = 20  # two epochs' worth of every remainder


def sample(tokens: list[int], num_prompt: int) -> Sample:
    return prompted(np.array(tokens, dtype=np.int32), num_prompt)


def arrow_file(path: Path, num_samples: int, batch_rows: int) -> PreparedData:
    """Write a file like train.prepare's: sample i has i % 5 + 2 tokens, all of them i."""
    return arrow_of(path, [i % 5 + 2 for i in range(num_samples)], batch_rows)


def arrow_of(path: Path, lengths: list[int], batch_rows: int = 100) -> PreparedData:
    """Write the same with samples of these lengths; only the last token has loss."""
    rows = [
        {
            "input_ids": [i] * length,
            "loss_ranges": [length - 1, length],
            "prompt": f"p{i}",
            "response": f"r{i}",
        }
        for i, length in enumerate(lengths)
    ]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for start in range(0, len(rows), batch_rows):
            chosen = rows[start : start + batch_rows]
            writer.write_batch(pa.RecordBatch.from_pylist(chosen, schema=SCHEMA))
    return PreparedData(
        path=str(path), num_samples=len(rows), num_too_long=0, longest=max(lengths), end_token_id=0
    )


def order_of(num_samples: int, batch_size: int, seed: int) -> Order:
    draws = (Draw(seed=seed),)
    return Order(Course(num_rows=num_samples, batch_size=batch_size, draws=draws))


def stream(order: Order) -> Iterator[int]:
    for step in range(NUM_STEPS):
        yield from order.step_indices(step)


@pytest.mark.parametrize("seed", [0, 7])
def test_each_epoch_is_a_permutation_of_its_own(seed: int) -> None:
    taken = list(stream(order_of(NUM_SAMPLES, BATCH, seed)))
    epochs = [taken[i : i + NUM_SAMPLES] for i in range(0, len(taken), NUM_SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(NUM_SAMPLES))] * len(epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_another_seed_is_another_order() -> None:
    one, other = (stream(order_of(NUM_SAMPLES, BATCH, seed)) for seed in (0, 1))
    assert list(one) != list(other)


def test_a_step_depends_on_nothing_that_was_asked_before() -> None:
    asked_in_order = list(stream(order_of(NUM_SAMPLES, BATCH, 0)))
    order = order_of(NUM_SAMPLES, BATCH, 0)
    backwards = [order.step_indices(step) for step in reversed(range(NUM_STEPS))]
    assert [i for indices in reversed(backwards) for i in indices] == asked_in_order
    assert order_of(NUM_SAMPLES, BATCH, 0).step_indices(9) == asked_in_order[63:70]


@pytest.mark.parametrize("num_samples", [2, 10, 1000, 4097])
def test_an_order_that_is_computed_has_each_sample_once(
    num_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.batches.epoch_order._LISTED", 0)
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        order = permutation(num_samples, seed, epoch)
        found = [int(order[position]) for position in range(num_samples)]
        assert sorted(found) == list(range(num_samples))
        again = permutation(num_samples, seed, epoch)
        assert [int(again[position]) for position in range(num_samples)] == found
        orders.append(found)
    if num_samples >= 1000:
        assert orders[0] != orders[1] != orders[2]
        # As in a random draw: as many go up as down, and none stays near where it was.
        steps = np.diff(orders[0])
        assert 0.45 < float((steps > 0).mean()) < 0.55
        moved = np.abs(np.array(orders[0]) - np.arange(num_samples)).mean() / num_samples
        assert 0.3 < float(moved) < 0.37  # a third


def test_an_order_of_millions_takes_no_memory() -> None:
    order = order_of(14_700_000, 64, 0)
    tracemalloc.start()
    for step in (0, 1, 200_000):
        assert len(set(order.step_indices(step))) == 64
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_samples_of_uneven_length_are_padded_on_the_right_without_loss() -> None:
    two_answers = np.array([7, 8, 9], np.int32), np.array([[0, 1], [2, 3]])
    batch = collate([sample([1, 2, 3, 4], 2), sample([5, 6], 1), two_answers])
    assert batch.input_ids.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]]
    no = IGNORE  # also for the first token, which nothing predicts
    assert batch.labels.tolist() == [[no, no, 3, 4], [no, 6, no, no], [no, no, 9, no]]
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    assert (batch.num_input_tokens, batch.num_label_tokens) == (9, 4)


def test_no_samples_make_a_batch_that_can_be_computed_and_counts_for_nothing() -> None:
    batch = collate([])
    assert batch.input_ids.shape == batch.labels.shape == (1, 2)
    assert (batch.num_input_tokens, batch.num_label_tokens) == (0, 0)
    assert set(batch.labels.flatten().tolist()) == {IGNORE}


@pytest.mark.parametrize("batch_rows", [100, 4])
def test_every_sample_is_found_by_its_index(tmp_path: Path, batch_rows: int) -> None:
    samples = SampleFile(arrow_file(tmp_path / "a.arrow", 23, batch_rows))
    assert len(samples) == 23
    for i in range(23):
        tokens, ranges = samples[i]
        assert tokens.tolist() == [i] * (i % 5 + 2)
        assert samples.length(i) == i % 5 + 2
        assert ranges.tolist() == [[i % 5 + 1, i % 5 + 2]]
        assert samples.texts(i) == (f"p{i}", f"r{i}")
    with pytest.raises(IndexError):
        samples[23]


@pytest.mark.parametrize("batch_rows", [5000, 4096], ids=["one batch", "two batches"])
def test_the_tokens_are_the_pages_of_the_file_itself(tmp_path: Path, batch_rows: int) -> None:
    path = tmp_path / "samples.arrow"
    prepared = arrow_file(path, 5000, batch_rows)
    before = pa.total_allocated_bytes()
    samples = SampleFile(prepared)
    addresses = [samples[i][0].ctypes.data for i in (0, 2500, 4999)]
    maps = [line.split() for line in Path("/proc/self/maps").read_text("utf-8").splitlines()]
    ranges = [
        [int(end, 16) for end in line[0].split("-")] for line in maps if line[-1] == str(path)
    ]
    for address in addresses:
        assert any(start <= address < end for start, end in ranges), "a copy of the file in memory"
    assert pa.total_allocated_bytes() - before < path.stat().st_size / 10


def test_a_rank_does_not_load_pandas_where_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()")
    prepared = arrow_file(tmp_path / "a.arrow", 23, 10)
    program = (
        "import sys; from train.data.dataset import SampleFile\n"
        "from rundir.prepared import PreparedData\n"
        f"print(SampleFile({prepared!r})[22][0].tolist())"
    )
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert python(program, env=env) == "[22, 22, 22, 22]\n"
    assert not (tmp_path / "loaded").exists()


def test_a_file_that_is_gone_is_an_oserror(tmp_path: Path) -> None:
    prepared = arrow_file(tmp_path / "a.arrow", 1, 1)
    Path(prepared.path).unlink()
    with pytest.raises(FileNotFoundError):
        SampleFile(prepared)
