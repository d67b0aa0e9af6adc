"""A sharded optimizer's states: those of the fullest rank, of the whole model, on all its ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launch.config.resolve import resolve
from launch.plan.question import question_of
from launch.plan.target import with_ranks
from ranks.torch_compat import fake_store
from rundir.config import RunConfig, TrainConfig
from rundir.units import GIB
from tests.train.trace.test_footprint import GPT2, QWEN3, built, configured, real
from train.step.loop import Trainer
from train.trace.estimate import footprint
from train.trace.kernels import kernels_of
from train.trace.storages import Storages
from train.update.optimizer import make_optimizer, with_own_states


def fullest(config: RunConfig, num_ranks: int) -> int:
    """Return the bytes that the fullest rank has, dealt out by hand as ZeRO's documentation says.

    Matrices first, then the rest, each the largest first, to the rank with least so far. Each has
    two averages, a count of steps, and, in bfloat16, a copy in float32.
    """
    parameters = [one for one in built(config).parameters() if one.requires_grad]
    matrices = [one.numel() for one in parameters if one.dim() > 1]
    others = [one.numel() for one in parameters if one.dim() <= 1]
    sizes, held = [0] * num_ranks, [0] * num_ranks
    weight_bytes = 2 * parameters[0].itemsize
    weight_bytes += 4 if parameters[0].dtype == torch.bfloat16 else 0
    for numel in (*sorted(matrices, reverse=True), *sorted(others, reverse=True)):
        rank = sizes.index(min(sizes))
        sizes[rank] += numel
        held[rank] += numel * weight_bytes + 4
    return max(held)


def sharded(config: RunConfig, num_ranks: int) -> RunConfig:
    train = replace(config.train, shard_optimizer=True, global_batch_size=2 * num_ranks)
    return with_ranks(replace(config, train=train), num_ranks)


@pytest.mark.runs
def test_a_real_models_states_are_to_the_byte_those_of_the_fullest_rank() -> None:
    config = sharded(real("Qwen2.5-14B"), 8)
    found = footprint(config, "cuda")
    assert found.optimizer_bytes == fullest(config, 8)
    even = found.num_parameters  # 8 bytes each, by 8 ranks
    assert even < found.optimizer_bytes < 1.01 * even


@pytest.mark.runs
@pytest.mark.parametrize("shape", [GPT2, QWEN3 | {"tie_word_embeddings": True}])
@pytest.mark.parametrize("num_ranks", [2, 7])
def test_no_rank_has_more_states_than_predicted_and_one_has_as_many(
    shape: dict[str, Any], num_ranks: int
) -> None:
    config = sharded(configured(shape), num_ranks)
    held = []
    for rank in range(num_ranks):
        model = built(config)
        dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=num_ranks)
        try:
            held.append(sum(one.nbytes for one in states_after_a_step(model)))
        finally:
            dist.destroy_process_group()
    assert footprint(config, "cuda").optimizer_bytes == max(held)


def states_after_a_step(model: Any) -> list[torch.Tensor]:
    """Return the states that this rank of the process group has after an update."""
    for one in model.parameters():
        one.grad = torch.empty_like(one) if one.requires_grad else None
    with kernels_of("cuda"):
        optimizer = make_optimizer(model, TrainConfig(weight_decay=0.1), is_sharded=True)
        optimizer.step()
    states = with_own_states(optimizer).state.values()
    return [value for state in states for value in state.values()]


def test_an_update_of_a_sharded_optimizer_takes_no_memory_but_its_states() -> None:
    model = built(configured(QWEN3))
    parameters = [one for one in model.parameters() if one.requires_grad]
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=2)
    storages = Storages("cpu", is_packed=False)
    storages.assign(parameters, "weights")
    try:
        with storages:
            storages.enter("optimizer")
            states = states_after_a_step(model)
    finally:
        dist.destroy_process_group()
    gradients = sum(one.nbytes for one in parameters)
    rest = storages.peaks["optimizer"]["optimizer"] - gradients
    assert rest - sum(one.nbytes for one in states) <= 64  # scalars of the step


def test_the_question_has_the_real_number_of_ranks_only_if_states_are_divided() -> None:
    def key(*settings: str, num_ranks: int) -> str:
        config = resolve("14b", ["train.method=full", *settings], {})[0]
        return question_of(with_ranks(config, num_ranks), "cuda").key

    assert key(num_ranks=4) == key(num_ranks=8)
    divided = [key("train.shard_optimizer=true", num_ranks=num_ranks) for num_ranks in (2, 4, 8)]
    assert len(set(divided)) == 3


@pytest.mark.runs
@pytest.mark.parametrize(
    ("updates", "gib"), [pytest.param("stochastic", 66, marks=pytest.mark.long), ("master", 73)]
)
def test_a_14b_model_trained_whole_fits_each_of_eight_gpus(updates: str, gib: int) -> None:
    settings = ("train.method=full", "train.shard_optimizer=true", f"train.bf16_updates={updates}")
    config = with_ranks(resolve("14b", settings, {})[0], 8)
    found = footprint(question_of(config, "cuda").config, "cuda")
    assert found.peak_bytes / GIB == pytest.approx(gib, abs=0.5)


@pytest.mark.long
def test_the_warm_up_is_counted_and_a_second_gradient_in_it_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = sharded(real("Qwen2.5-14B"), 8)
    found = footprint(config, "cuda")
    assert found.peak_moment != "warm-up"

    def keep_gradients(self: Trainer) -> None:
        kept, self.optimizer.zero_grad = self.optimizer.zero_grad, lambda **_: None  # type: ignore[method-assign]
        warm_up(self)
        self.optimizer.zero_grad = kept  # type: ignore[method-assign]
        self.optimizer.zero_grad(set_to_none=False)

    warm_up = Trainer.warm_up
    monkeypatch.setattr(Trainer, "warm_up", keep_gradients)
    twice = footprint(config, "cuda")
    assert twice.peak_moment == "warm-up"
    assert twice.ddp_bytes > 0.9 * found.gradients_bytes
    assert twice.optimizer_bytes == 0
    assert twice.peak_bytes > found.weights_bytes + 1.9 * found.gradients_bytes
