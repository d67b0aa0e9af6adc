"""Rows of several samples, and that all ranks together train each sample of a step once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rundir.config import Packing, RunConfig
from tests.train.data.test_data import arrow_file, arrow_of, sample
from tests.train.kernels import Calls
from train.batches.batch import IGNORE, Batch, collate, collate_rows
from train.batches.course import course_of
from train.batches.epoch_order import Order
from train.batches.feed import Feed
from train.batches.packing import alike_batches, balanced_rows, balanced_shares, pack
from train.data.dataset import SampleFile
from train.data.like_lengths import like_lengths
from train.model.on_device import copied_at_once

WORLDS = [1, 2, 3, 4, 8]


def config_of(*, packing: Packing, batch: int, size: int, row_tokens: int = 8) -> RunConfig:
    config = RunConfig(profile="test")
    train = replace(config.train, global_batch_size=batch, max_steps=100, seed=3)
    return replace(
        config,
        data=replace(config.data, packing=packing, max_seq_length=row_tokens),
        train=replace(train, micro_batch_size=size),
    )


def tokens_of(batch: Batch) -> list[int]:
    """Return the tokens of a batch without padding, which is 0 like sample 0."""
    found = batch.input_ids.flatten().tolist()
    return sorted(found, reverse=True)[: batch.num_input_tokens]


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_overfull_no_sample_is_lost_and_rows_are_few(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 65, draw.integers(1, 200)).tolist()
    full, even = pack(lengths, 64), balanced_rows(lengths, 64)
    for rows in (full, even):
        assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
        filled = [sum(lengths[i] for i in row) for row in rows]
        assert max(filled) <= 64
        assert filled == sorted(filled, reverse=True)
    assert len(full) <= 11 / 9 * -(-sum(lengths) // 64) + 6 + sum(one > 32 for one in lengths)
    assert len(even) <= len(full)
    assert pack(lengths, 64) == full


def test_rows_are_as_full_as_they_can_be() -> None:
    rows = pack([60, 4, 30, 34, 20, 44], 64)
    assert sorted(sorted(row) for row in rows) == [[0, 1], [2, 3], [4, 5]]
    assert pack([3, 100, 2], 64) == [[1], [0, 2]]  # what no row can hold has one of its own
    assert pack([], 64) == []


def test_rows_are_even_where_they_can_be() -> None:
    assert [len(row) for row in balanced_rows([1] * 10, 8)] == [5, 5]
    assert [len(row) for row in pack([1] * 10, 8)] == [8, 2]
    assert balanced_rows([5, 5, 5], 8) == [[0], [1], [2]]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("num_samples", [0, 1, 7, 64])
def test_shares_are_as_large_as_each_other(world_size: int, num_samples: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, num_samples).tolist()
    shares = balanced_shares(lengths, world_size)
    assert len(shares) == world_size
    assert sorted(i for share in shares for i in share) == list(range(num_samples))
    tokens = [sum(lengths[i] for i in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_rows_of_unlike_length_are_not_computed_together() -> None:
    assert alike_batches([100, 99, 98, 97], 2) == [[0, 1], [2, 3]]
    assert alike_batches([100, 50, 49, 10], 4) == [[0], [1, 2], [3]]
    assert alike_batches([], 4) == []


def fill(config: RunConfig, samples: SampleFile, world_size: int, num_steps: int) -> float:
    """Return the share of real tokens in all that ranks compute and wait for."""
    feed, real, computed = Feed(samples, config, 0, world_size), 0, 0
    for step in range(num_steps):
        shares = [
            [[sum(map(samples.length, row)) for row in batch] for batch in share]
            for share in feed.shares(step)
        ]
        real += sum(tokens for share in shares for batch in share for tokens in batch)
        computed += world_size * max(
            sum(len(batch) * max(batch) for batch in share) for share in shares
        )
    return real / computed


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 4])
def test_next_to_nothing_is_computed_for_padding_or_waited_for(
    tmp_path: Path, world_size: int, size: int
) -> None:
    draw = np.random.default_rng(0)
    # Lengths as in instruction data: most short, a few as long as a row (log-normal).
    lengths = np.exp(draw.normal(np.log(32), 1.0, 640)).astype(int).clip(4, 256)
    samples = SampleFile(arrow_of(tmp_path / "a.arrow", lengths.tolist()))
    config = config_of(packing=True, batch=64, size=size, row_tokens=256)
    assert fill(config, samples, world_size, num_steps=10) > 0.97


@pytest.mark.parametrize("packing", [True, False, "by_length"])
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("batch", "size"), [(1, 1), (7, 2), (25, 4)])
def test_all_ranks_together_have_each_sample_of_a_step_once(
    tmp_path: Path, world_size: int, batch: int, size: int, packing: Packing
) -> None:
    samples = SampleFile(arrow_file(tmp_path / "a.arrow", 10, 100))
    config = config_of(packing=packing, batch=batch, size=size)
    order = Order(course_of(config, len(samples)))
    for step in range(5):
        shares = [Feed(samples, config, rank, world_size).step(step) for rank in range(world_size)]
        assert len({len(share) for share in shares}) == 1  # otherwise a rank would wait for ever
        found = sorted(token for share in shares for batch in share for token in tokens_of(batch))
        wanted = sorted(t for i in order.step_indices(step) for t in samples[i][0].tolist())
        assert found == wanted
        batches = [batch.input_ids for share in shares for batch in share]
        most = size * 8 if packing == "by_length" else max(map(len, batches)) * 8
        assert all(batch.numel() <= most for batch in batches)
        assert packing == "by_length" or all(len(batch) <= size for batch in batches)


def test_packing_needs_fewer_rows(tmp_path: Path) -> None:
    samples = SampleFile(arrow_file(tmp_path / "a.arrow", 10, 100))
    packed, padded = (
        Feed(samples, config_of(packing=packing, batch=10, size=1), 0, 1).step(0)
        for packing in (True, False)
    )
    assert (len(packed), len(padded)) == (5, 10)  # 40 tokens in rows of 8


@pytest.mark.parametrize("seed", range(30))
def test_batches_by_length_compute_the_least_that_any_division_would(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = sorted(draw.integers(1, 60, 9).tolist(), reverse=True)
    cost, most = int(draw.integers(0, 40)), int(draw.choice([0, 70, 120]))

    def computed(batches: list[list[int]]) -> int:
        return sum(lengths[batch[0]] * len(batch) + cost for batch in batches)

    def divisions() -> Iterator[list[list[int]]]:
        for cuts in itertools.product([False, True], repeat=8):
            ends = [0, *(at + 1 for at in range(8) if cuts[at]), 9]
            yield [list(range(*pair)) for pair in itertools.pairwise(ends)]

    def fits(batches: list[list[int]]) -> bool:
        return not most or all(
            len(batch) == 1 or lengths[batch[0]] * len(batch) <= most for batch in batches
        )

    found = like_lengths(lengths, cost=cost, most=most)
    assert [at for batch in found for at in batch] == list(range(9))
    assert fits(found)
    assert computed(found) == min(computed(one) for one in divisions() if fits(one))
    assert like_lengths([], cost=cost, most=most) == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_by_length_pad_little_and_are_few(tmp_path: Path, world_size: int) -> None:
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.normal(np.log(32), 1.0, 640)).astype(int).clip(4, 256)
    samples = SampleFile(arrow_of(tmp_path / "a.arrow", lengths.tolist()))
    config = config_of(packing="by_length", batch=64, size=4, row_tokens=256)
    feed = Feed(samples, config, 0, world_size)
    tokens, computed, batches = map(sum, zip(*map(feed.tokens, range(10)), strict=True))
    assert tokens == sum(lengths)
    assert computed < 1.2 * tokens
    by_row = Feed(
        samples, config_of(packing=False, batch=64, size=4, row_tokens=256), 0, world_size
    )
    assert batches < 0.9 * sum(by_row.tokens(step)[2] for step in range(10))
    made = [one.input_ids for step in range(10) for one in feed.step(step)]
    assert max(one.numel() for one in made) <= 4 * 256
    if world_size == 1:
        assert sum(one.numel() for one in made) == computed
        assert len(made) == batches


def test_samples_in_a_row_begin_anew_and_are_not_predicted_from_each_other() -> None:
    batch = collate_rows([[sample([1, 2, 3], 1), sample([4, 5], 0)], [sample([6, 7, 8], 2)]])
    no = IGNORE
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert batch.labels.tolist() == [[no, 2, 3, no, 5], [no, no, 8, no, no]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 0, 1]]
    assert (batch.num_input_tokens, batch.num_label_tokens) == (8, 4)


def test_a_model_gets_the_tokens_that_predict_and_what_they_predict() -> None:
    batch = collate([sample([1, 2, 3, 4], 2), sample([5, 6], 1)])
    ids, positions, where, targets, cu_seq_lens, max_length, starts = batch.arguments()
    assert (cu_seq_lens.tolist(), max_length, starts) == ([0, 4, 6, 8], 256, [0, 4, 6])
    assert ids is not None and where is not None and targets is not None  # noqa: PT018
    assert positions is None
    assert (where.tolist(), targets.tolist()) == ([1, 2, 4], [3, 4, 6])
    assert ids.flatten()[where].tolist() == [2, 3, 5]


BATCHES = {
    "rows": collate([sample([1, 2, 3, 4], 2), sample([5, 6], 1)]),
    "packed": collate_rows([[sample([1, 2, 3], 1), sample([4, 5], 0)], [sample([6, 7, 8], 2)]]),
    "nothing": collate([]),
}


def values(tensors: Sequence[torch.Tensor | None]) -> list[Any]:
    return [None if tensor is None else tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("name", BATCHES)
def test_a_gpu_gets_it_by_one_copy_from_page_locked_memory(name: str) -> None:
    *tensors, _, _ = BATCHES[name].arguments()
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    with Calls() as noted:
        there = copied_at_once(tensors, "meta", pin)
    to_device = [
        call.args[0]
        for call in noted.calls
        if call.name == "_to_copy" and call.args[0].device.type == "cpu"
        if call.kwargs.get("device") == torch.device("meta")
    ]
    assert len(to_device) == len(pinned) == 1
    assert to_device[0] is pinned[0]
    shapes = [
        [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in of]
        for of in (tensors, there)
    ]
    assert shapes[0] == shapes[1]
    assert values(copied_at_once(tensors, "cpu", pin)) == values(tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("name", BATCHES)
def test_a_real_gpu_is_not_waited_for(name: str) -> None:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = BATCHES[name].arguments("cuda")
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert values(there[:-2]) == values(BATCHES[name].arguments()[:-2])
