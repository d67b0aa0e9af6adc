"""MFU: the computation that the model needs, divided by what all GPUs together could have done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ranks.group import Ranks
from rundir.config import RunConfig
from train.batches.batch import Work
from train.step.mfu import ModelFlops
from train.step.progress import StepProgress

FLOPS = ModelFlops(per_label=5.0, per_input=100.0, per_squared_length=2.0)
WORK = Work(num_labels=20, num_inputs=40, squared_lengths=800)


def new_progress(world_size: int) -> StepProgress:
    nobody: Any = None  # no collective is run here
    ranks = Ranks(rank=0, world_size=world_size, device=torch.device("cpu"), control=nobody)
    return StepProgress(RunConfig(profile="test"), ranks)


@pytest.mark.parametrize("world_size", [1, 4])
def test_mfu_is_a_share_of_all_gpus_together(world_size: int) -> None:
    progress = new_progress(world_size)
    progress.begin(FLOPS)
    progress._peak = 1000.0  # as on a GPU
    assert FLOPS.of(WORK) == 20 * 5 + 40 * 100 + 800 * 2
    assert progress._mfu(WORK, 10.0) == pytest.approx(5700 / (10 * 1000 * world_size), abs=1e-4)


def test_without_a_peak_or_a_count_there_is_none() -> None:
    progress = new_progress(1)
    progress.begin(FLOPS)
    assert progress._mfu(WORK, 10.0) is None
    progress._peak = 1000.0
    progress.begin(None)
    assert progress._mfu(WORK, 10.0) is None
