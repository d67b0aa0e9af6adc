"""The checksums by which ranks compare their weights, and the buffers that a model changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from ranks.group import Alone
from rundir.errors import UserError
from train.model.loading import _CHUNK_NUMEL, check_same_weights, checksums
from train.step.selftest import buffers_watched


class Three(Alone):
    """Rank 0 of three, of which the last has another model."""

    def __init__(self, other: Any) -> None:
        super().__init__(torch.device("cpu"))
        self.other: Any
        object.__setattr__(self, "other", other)
        object.__setattr__(self, "world_size", 3)

    def gather(self, value: Any) -> list[Any]:
        return [value, value, checksums(self.other)]


def model(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 7, bias=False))
    made.register_buffer("positions", torch.arange(4.0))
    return made.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_change_of_one_bit_anywhere_is_another_checksum(dtype: torch.dtype) -> None:
    same = checksums(model(dtype=dtype))
    assert checksums(model(dtype=dtype)) == same
    for name, tensor in (*model().named_parameters(), *model().named_buffers()):
        changed = model(dtype=dtype)
        bits = changed.state_dict()[name].view(-1).view(torch.uint8)
        bits[-1] ^= 1
        found = checksums(changed)
        assert [key for key in same if found[key] != same[key]] == [name], tensor.shape


def test_chunks_cover_a_whole_tensor_of_any_dtype() -> None:
    long = nn.Module()
    long.register_buffer("bits", torch.ones(2 * _CHUNK_NUMEL + 3, dtype=torch.uint8))
    long.register_buffer("flags", torch.tensor([True, False, True]))
    long.register_buffer("none", torch.tensor([math.nan], dtype=torch.float16))
    sums = [value for *_, value in checksums(long).values()]
    assert sums[:2] == [2 * _CHUNK_NUMEL + 3, 2]
    assert checksums(long) == checksums(long)


def test_the_rank_whose_weights_differ_is_named_with_the_tensor() -> None:
    other = model()
    with torch.no_grad():
        other.get_parameter("2.weight")[0, 0] += 1
    with pytest.raises(UserError, match=r"weights of rank 2 .* 2\.weight differs, of 1 of 6"):
        check_same_weights(model(), Three(other))
    with pytest.raises(UserError, match="weights of rank 2"):  # of another shape
        check_same_weights(model(), Three(nn.Sequential(nn.Linear(5, 3))))
    check_same_weights(model(), Three(model()))
    check_same_weights(model(), Alone(torch.device("cpu")))


def test_buffers_that_a_step_changes_are_found_and_have_their_values_back() -> None:
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    normed.register_buffer("constant", torch.tensor([1.0, math.nan]))
    before = {name: one.clone() for name, one in normed.named_buffers()}
    with buffers_watched(normed) as changed:
        normed(torch.randn(8, 4))
    assert set(changed) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for name, one in normed.named_buffers():
        assert torch.equal(one.nan_to_num(), before[name].nan_to_num()), name
    with buffers_watched(normed.eval()) as changed:
        normed(torch.randn(8, 4))
    assert changed == []
    with buffers_watched(normed) as changed:
        normed.constant = torch.zeros(2)  # one that is replaced
    assert changed == ["constant"]


def test_scales_of_four_bit_weights_are_compared_too() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    made: Any = nn.Module()
    made.weight = nn.Parameter(torch.zeros(64, 1, dtype=torch.uint8), requires_grad=False)
    _, state = functional.quantize_4bit(torch.randn(64, 64), quant_type="nf4")
    made.weight.quant_state = state
    same = checksums(made)
    assert len(same) > 1
    state.absmax[0] += 1
    assert [name for name, value in checksums(made).items() if same[name] != value] == [
        "weight (scales 0)"
    ]
