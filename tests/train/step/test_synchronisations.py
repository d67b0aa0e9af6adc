"""Nothing of a step but its report waits for the device: all that the host has to know it knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rundir.config import TrainConfig
from tests.neighbours import rows
from tests.train.model.test_apart import made
from train.batches.batch import Batch, collate, collate_rows
from train.model.apart import Apart
from train.model.loss import SummedLoss
from train.update.gradients import clip_gradients
from train.update.optimizer import make_optimizer

KINDS = ["qwen3", "lfm2"]  # attention alone, and with layers that get each sample by itself
WAYS = ["packed", "padded"]
READERS = ("tolist", "item", "__bool__", "__float__", "__int__")


def model_and_batch(kind: str, way: str) -> tuple[Any, Batch]:
    model = made(kind)
    Apart(model)
    samples, _ = rows(model)
    return model, collate_rows([samples, samples[1:]]) if way == "packed" else collate(samples)


@pytest.mark.parametrize("head", ["matrix", "whole"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_value_is_read_from_the_device_between_the_copy_and_the_clipping(
    kind: str, way: str, head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = model_and_batch(kind, way)
    arguments = batch.arguments()
    read: list[str] = []

    def noting(name: str) -> Any:
        own = getattr(torch.Tensor, name)

        def call(tensor: torch.Tensor) -> Any:
            read.append(name)
            return own(tensor)

        return call

    for name in READERS:
        monkeypatch.setattr(torch.Tensor, name, noting(name))
    loss = SummedLoss(model, head=head)(*arguments)
    loss.backward()
    clip_gradients(list(model.parameters()), 1.0)
    assert read == []
    *unaware, _ = arguments
    assert torch.equal(SummedLoss(model, head=head)(*unaware), loss)
    assert read  # transformers looks whether rows are packed


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_gpu_is_waited_for_nowhere_in_a_step(kind: str, way: str) -> None:
    model, batch = model_and_batch(kind, way)
    model = model.to("cuda", torch.bfloat16)
    summed = SummedLoss(model)
    optimizer = make_optimizer(model, TrainConfig())

    def step() -> None:
        summed(*batch.arguments("cuda")).backward()
        clip_gradients(list(model.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()  # kernels are loaded, states are made
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(before)
