"""How DDP is set up: what it sends, when, and in buckets of which size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import CONFIG_MAPPING

from ranks.group import Ranks
from ranks.torch_compat import default_group, fake_store
from rundir.config import RunConfig
from rundir.units import GIB, MIB
from tests.models import QWEN3
from train.model.build import new_model
from train.step.selftest import try_step
from train.trace.step_trace import _reduced
from train.update.gradients import bucket_cap_mib
from train.worker import wrap


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Return rank 0 of two, of a group that only appears to be one."""
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=2)
    yield Ranks(rank=0, world_size=2, device=torch.device("cpu"), control=default_group())
    dist.destroy_process_group()


class Averaging(nn.Module):
    """A layer with a running average, around another one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(()))

    def forward(self, *given: Any, **more: Any) -> Any:
        found = self.layer(*given, **more)
        if self.training:
            self.average.lerp_(found.detach().float().mean(), 0.1)
        return found


def small_model(*, averages: bool = False) -> Any:
    shape = dict(QWEN3)
    described = CONFIG_MAPPING[shape.pop("model_type")](**shape)
    model = new_model(described, RunConfig(profile="test"), torch.device("cpu")).float()
    if averages:
        model.model.norm = Averaging(model.model.norm)
    return model


@pytest.mark.parametrize("averages", [False, True])
def test_buffers_are_sent_before_a_step_only_if_a_step_changes_them(
    ranks: Ranks, averages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(averages=averages)
    tried = try_step(model)
    assert tried.changed_buffers == (("model.norm.average",) if averages else ())
    wrapped: Any = wrap(model, ranks, init_sync=False, tried=tried)
    wrapped.register_comm_hook(None, lambda _, bucket: _reduced(bucket))
    assert any(True for _ in model.buffers())
    sent = []
    sync = type(wrapped)._sync_buffers
    monkeypatch.setattr(type(wrapped), "_sync_buffers", lambda self: sent.append(sync(self)))
    ids = torch.arange(8)[None]
    for _ in range(2):
        wrapped(ids, None, torch.arange(7), torch.arange(7)).backward()
    assert len(sent) == (2 if averages else 0)


def with_gradients_of(num_bytes: int, dtype: torch.dtype) -> nn.Module:
    model = nn.Module()
    shape = num_bytes // dtype.itemsize
    model.weight = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
    model.frozen = nn.Parameter(torch.empty(10**12, device="meta"), requires_grad=False)
    return model


def test_gigabytes_of_gradients_are_sent_in_larger_buckets() -> None:
    adapters = with_gradients_of(300 * MIB, torch.float32)
    assert bucket_cap_mib(adapters, 8) is None
    full = with_gradients_of(28 * GIB, torch.bfloat16)
    assert bucket_cap_mib(full, 8) == 76  # 40 M values
    assert bucket_cap_mib(full, 100) == 190  # 1 M for each rank
    assert bucket_cap_mib(with_gradients_of(2 * GIB, torch.float32), 2) == 152


def test_ddp_is_given_these_buckets(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.update.gradients._MANY_GRADIENT_BYTES", 1)
    wrapped: Any = wrap(small_model(), ranks, init_sync=False)
    assert wrapped.bucket_bytes_cap == 152 * MIB
