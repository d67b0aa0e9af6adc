"""Weights in bfloat16: small updates are not lost, and a resumed run draws the same noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ranks.group import Ranks
from rundir.config import TrainConfig
from train.step import checkpoint
from train.update import bf16
from train.update.bf16 import MASTER, num_without_master
from train.update.optimizer import make_optimizer, with_own_states
from train.update.rounding import round_at_random

WAYS: list[Any] = ["master", "stochastic"]
KINDS = [False, True]  # in 8 bits


class Training:
    """Matrices in bfloat16 that follow random gradients."""

    def __init__(
        self,
        updates: Any,
        *,
        lr: float = 1e-3,
        in_8_bits: bool = False,
        dtype: Any = None,
        seed: int = 5,
        is_sharded: bool = False,
    ) -> None:
        if in_8_bits:
            pytest.importorskip("bitsandbytes")
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(96, 80), nn.Linear(80, 3)).to(dtype or torch.bfloat16)
        settings = TrainConfig(
            learning_rate=lr,
            weight_decay=0.01,
            optimizer="adamw-8bit" if in_8_bits else "adamw",
            bf16_updates=updates,
            seed=seed,
        )
        self.optimizer = make_optimizer(self.model, settings, is_sharded=is_sharded)
        self.num_steps = 0

    @property
    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def steps(self, number: int) -> list[torch.Tensor]:
        """Take steps, each with a gradient of its own; return the weights."""
        for _ in range(number):
            self.num_steps += 1
            draw = torch.Generator().manual_seed(self.num_steps)
            for p in self.model.parameters():
                p.grad = (torch.randn(p.shape, generator=draw) + 1).to(p.dtype)
            self.optimizer.step()
        return self.weights

    def resumed(self, path: Path, ranks: Ranks) -> Training:
        self.num_steps = checkpoint.load(path, self.model, self.optimizer, ranks)
        return self


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def distance(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    pairs = zip(one, other, strict=True)
    return float(sum((a.double() - b.double()).square().sum() for a, b in pairs) ** 0.5)


@pytest.mark.parametrize("in_8_bits", KINDS)
def test_updates_below_the_last_bit_are_not_lost(in_8_bits: bool) -> None:
    options: dict[str, Any] = {"lr": 1e-5, "in_8_bits": in_8_bits}
    start = Training("plain", dtype=torch.float32, **options).weights
    exact = Training("plain", dtype=torch.float32, **options).steps(100)
    way = distance(exact, start)
    lost = distance(Training("plain", **options).steps(100), exact)
    assert lost > 0.8 * way  # hardly a weight has moved
    master = Training("master", **options)
    master.steps(100)
    copies = [master.optimizer.state[p][MASTER] for p in master.model.parameters()]
    assert {one.dtype for one in copies} == {torch.float32}
    rounded = [one.bfloat16().float() for one in start]
    moved = [c - r for c, r in zip(copies, rounded, strict=True)]
    wanted = [e - s for e, s in zip(exact, start, strict=True)]
    assert distance(moved, wanted) < 0.2 * way
    drawn = Training("stochastic", **options)
    drift = [a.float() - b for a, b in zip(drawn.steps(100), rounded, strict=True)]
    mean, right = (float(torch.cat([one.flatten() for one in x]).mean()) for x in (drift, wanted))
    assert mean == pytest.approx(right, rel=0.1)  # right on average


@pytest.mark.parametrize("in_8_bits", KINDS)
def test_a_weight_is_its_copy_rounded_to_the_nearest(in_8_bits: bool) -> None:
    training = Training("master", in_8_bits=in_8_bits)
    training.steps(4)
    for p in training.model.parameters():
        assert torch.equal(p.detach(), training.optimizer.state[p][MASTER].bfloat16())
        assert p.dtype == torch.bfloat16


@pytest.mark.parametrize("updates", WAYS)
def test_states_have_the_dtypes_that_they_have_without(updates: Any) -> None:
    training, plain = Training(updates), Training("plain")
    training.steps(2)
    plain.steps(2)
    for p, other in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        ours, torchs = training.optimizer.state[p], plain.optimizer.state[other]
        assert {key: ours[key].dtype for key in torchs} == {
            key: value.dtype for key, value in torchs.items()
        }
        assert ours["step"] == torchs["step"] == 2


@pytest.mark.parametrize("updates", WAYS)
@pytest.mark.parametrize("in_8_bits", KINDS)
def test_parameters_in_float32_are_updated_as_ever_to_the_last_bit(
    updates: Any, in_8_bits: bool
) -> None:
    options: dict[str, Any] = {"dtype": torch.float32, "in_8_bits": in_8_bits}
    with_remedy, without = Training(updates, **options), Training("plain", **options)
    assert type(with_remedy.optimizer) is type(without.optimizer)
    assert same(with_remedy.steps(5), without.steps(5))


@pytest.mark.parametrize("updates", WAYS)
def test_beside_parameters_in_bfloat16_those_in_float32_are_too(updates: Any) -> None:
    torch.manual_seed(0)
    first = nn.Parameter(torch.randn(40, 40))
    second = nn.Parameter(first.detach().clone())
    low = nn.Parameter(torch.randn(3, 3).bfloat16())
    settings = TrainConfig(learning_rate=1e-2, weight_decay=0.1, bf16_updates=updates)
    mixed = make_optimizer(nn.ParameterList([low, first]), settings)
    alone = make_optimizer(nn.ParameterList([second]), settings)
    for _ in range(5):
        first.grad = torch.randn(40, 40)
        second.grad, low.grad = first.grad.clone(), torch.ones_like(low)
        mixed.step()
        alone.step()
    assert torch.equal(first, second)
    assert MASTER not in mixed.state[first]


@pytest.mark.parametrize("updates", WAYS)
@pytest.mark.parametrize("in_8_bits", KINDS)
def test_a_resumed_training_goes_on_to_the_last_bit(
    updates: Any, in_8_bits: bool, tmp_path: Path, ranks: Ranks
) -> None:
    first = Training(updates, in_8_bits=in_8_bits)
    first.steps(3)
    path = checkpoint.save(tmp_path, 3, first.model, first.optimizer, ranks, keep=1)
    torch.manual_seed(99)  # nothing depends on the generator of the rank
    resumed = Training(updates, in_8_bits=in_8_bits).resumed(path, ranks)
    assert num_without_master(resumed.optimizer) == 0
    assert same(resumed.steps(4), first.steps(4))


def test_noise_depends_on_the_seed_the_parameter_and_the_step_alone() -> None:
    assert same(Training("stochastic").steps(3), Training("stochastic").steps(3))
    assert not same(Training("stochastic").steps(3), Training("stochastic", seed=6).steps(3))
    one, other = (nn.Parameter(torch.full((64, 64), 1.001).bfloat16()) for _ in range(2))
    settings = TrainConfig(learning_rate=1e-3, bf16_updates="stochastic")
    optimizer = make_optimizer(nn.ParameterList([one, other]), settings)
    changes = []
    for _ in range(2):
        before = one.detach().clone()
        one.grad, other.grad = torch.ones_like(one), torch.ones_like(other)
        optimizer.step()
        assert not torch.equal(one, other)
        changes.append(one.detach() != before)
    assert not torch.equal(*changes)


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [("plain", "master"), ("stochastic", "master"), ("master", "stochastic"), ("master", "plain")],
)
@pytest.mark.parametrize("in_8_bits", KINDS)
def test_a_checkpoint_of_another_way_is_gone_on_from(
    saved: Any, resumed: Any, in_8_bits: bool, tmp_path: Path, ranks: Ranks
) -> None:
    first = Training(saved, in_8_bits=in_8_bits)
    first.steps(3)
    path = checkpoint.save(tmp_path, 3, first.model, first.optimizer, ranks, keep=1)
    second = Training(resumed, in_8_bits=in_8_bits).resumed(path, ranks)
    assert num_without_master(second.optimizer) == (4 if resumed == "master" else 0)
    assert same(second.weights, first.weights)
    assert distance(second.steps(3), first.steps(3)) < 0.1 * distance(
        first.weights, Training(saved).weights
    )
    assert num_without_master(second.optimizer) == 0
    for state in second.optimizer.state.values():
        assert (MASTER in state) == (resumed == "master")


@pytest.mark.parametrize("updates", WAYS)
def test_pieces_change_nothing_but_the_noise(updates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Training(updates).steps(3)
    monkeypatch.setattr(bf16, "_PIECE", 500)  # a few rows of a matrix
    in_pieces = Training(updates).steps(3)
    if updates == "master":
        assert same(in_pieces, whole)
    assert distance(in_pieces, whole) < 0.01 * distance(whole, [0 * one for one in whole])
    assert same(Training(updates).steps(3), in_pieces)


def test_pieces_are_views_of_any_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16, "_PIECE", 10)
    turned = torch.zeros(6, 9).T
    for (some,) in bf16.pieces([turned]):
        assert some.numel() <= 10
        some.add_(1)
    assert torch.equal(turned, torch.ones(9, 6))
    assert [one.shape for (one,) in bf16.pieces([torch.zeros(())])] == [torch.Size()]


def test_rounding_at_random_is_right_on_average_and_exact_where_it_can_be() -> None:
    value = 1 + 0.3 * 2**-7  # three tenths of the way from one number to the next
    values = torch.full((200_000,), value)
    round_at_random(values, torch.Generator().manual_seed(0))
    assert set(values.tolist()) == {1.0, 1 + 2**-7}
    assert float((values > 1).double().mean()) == pytest.approx(0.3, abs=0.005)
    some = torch.randn(1000).bfloat16().float()
    before = some.clone()
    round_at_random(some, torch.Generator().manual_seed(1))
    assert torch.equal(some, before)
    small = torch.tensor([-value] * 1000)
    round_at_random(small, torch.Generator().manual_seed(2))
    assert set(small.tolist()) == {-1.0, -1 - 2**-7}


def test_what_is_no_number_is_not_rounded_to_one() -> None:
    bits = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32)  # the NaN that a GPU makes
    odd = torch.cat([bits.view(torch.float32), torch.tensor([float("inf"), float("-inf")])])
    odd = odd.repeat(1000)
    round_at_random(odd, torch.Generator().manual_seed(0))
    found = odd.bfloat16().float().view(-1, 4)
    assert found[:, :2].isnan().all()
    assert (found[:, 2] == float("inf")).all()
    assert (found[:, 3] == float("-inf")).all()


def test_no_temporary_is_as_large_as_a_large_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.trace.storages import Storages

    monkeypatch.setattr(bf16, "_PIECE", 1000)
    peaks = {}
    for way in ("master", "stochastic"):
        large = nn.Parameter(torch.empty(100, 1000, dtype=torch.bfloat16, device="meta"))
        settings = TrainConfig(learning_rate=1e-3, bf16_updates=way)
        optimizer = make_optimizer(nn.ParameterList([large]), settings)
        storages = Storages("cpu", is_packed=False)
        with storages:
            large.grad = torch.empty_like(large)
            optimizer.step()
            storages.enter("optimizer")
            storages.restart()
            held = sum(storages.held.values())
            optimizer.step()
            storages.enter("optimizer")
        peaks[way] = sum(storages.peaks["optimizer"].values()) - held
    assert 0 < peaks["master"] <= 12 * 1000 + 8
    assert 0 < peaks["stochastic"] <= 22 * 1000


@pytest.mark.parametrize("updates", WAYS)
@pytest.mark.usefixtures("ranks")
def test_copies_are_shared_out_with_the_states(updates: Any) -> None:
    """With one rank, that rank has all; the construction is that of many."""
    shared, whole = Training(updates, is_sharded=True), Training(updates)
    assert same(shared.steps(3), whole.steps(3))
    states = with_own_states(shared.optimizer).state
    assert len(states) == 4
    assert all((MASTER in state) == (updates == "master") for state in states.values())
