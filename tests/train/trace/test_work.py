"""Operations and bytes of a traced step: those that torch counts, and those of each kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models import QWEN3
from tests.train.kernels import Calls
from tests.train.trace.test_footprint import configured
from train.batches.batch import collate
from train.data.dataset import prompted
from train.model.build import add_method, new_model
from train.model.loss import SummedLoss
from train.trace.estimate import _described
from train.trace.step_trace import trace
from train.trace.work import Work


@pytest.mark.runs
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_operations_are_those_that_torch_counts_in_a_real_step(
    method: str, recomputed: bool
) -> None:
    config = configured(
        QWEN3,
        method=method,
        attention="eager",  # whose products torch counts on a CPU
        gradient_checkpointing=recomputed,
        lora_rank=4,
    )
    described = _described(config)
    counts = trace(described, config, "cpu").counts
    model = add_method(new_model(described, config, torch.device("cpu")), config.train)
    row = prompted(np.arange(48), 1)
    # torch leaves out products that are added in place.
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        SummedLoss(model)(*collate([row]).arguments()).backward()
    assert counts["matrix_flops"] == counter.get_total_flops()


A = torch.zeros(8, 16)  # 512 bytes
BYTES: dict[str, tuple[Callable[[], Any], int]] = {
    "a product": (lambda: A @ A.t(), 512 + 512 + 256),
    "a sum": (lambda: A + A, 3 * 512),
    "in place": (lambda: A.clone().add_(1), 2 * 512 + 2 * 512),
    "a copy": (lambda: torch.empty(8, 16).copy_(A), 2 * 512),
    "zeros": (lambda: torch.zeros(8, 16), 512),
    "a view": (lambda: A.t()[2:].unsqueeze(0), 0),
    "nothing yet": (lambda: torch.empty_like(A), 0),
    "one row for all": (lambda: A + torch.zeros(16).expand(8, 16), 2 * 512 + 2 * 64),
    "rows looked up": (lambda: torch.embedding(A, torch.tensor([1, 1])), 2 * 128),
    "values added": (
        lambda: A.clone().scatter_add_(1, torch.zeros(8, 1, dtype=torch.long), torch.ones(8, 1)),
        2 * 512 + 64 + 32 + 3 * (64 + 32),
    ),
    "an update": (
        lambda: torch._foreach_mul_([A.clone(), A.clone()], 2.0),
        2 * (2 * 512) + 2 * (2 * 512),
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_a_kernel_reads_its_inputs_and_writes_its_outputs_once(name: str) -> None:
    compute, expected = BYTES[name]
    work = Work()
    with torch.no_grad(), Calls() as noted:
        compute()
    for call in noted.calls:
        work.add(*call)
    assert work.num_bytes == pytest.approx(expected, abs=16)  # of a number given
