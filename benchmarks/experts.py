"""The accuracy that LoRA on experts loses by being folded into their weights in bfloat16.

`python -m benchmarks.experts [--quick] [--json]` trains adapters on the experts of a small mixture,
from the same weights, in float32 and in bfloat16, on one batch. peft adds an adapter's product to a
copy of the experts in their own dtype, which loses anything below half a unit in the last place; an
adapter on a layer is added to the layer's output, and loses nothing. So both are trained.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.architectures.model_checks import samples
from benchmarks.architectures.small_models import enlarge, small_config
from benchmarks.report import machine
from rundir.config import RunConfig, TrainConfig
from train.batches.batch import collate
from train.model.build import add_method, new_model
from train.model.loss import SummedLoss

_TARGETS = {"experts": "experts.gate_up_proj,experts.down_proj", "layers": "q_proj,v_proj,o_proj"}
_RATES = (1e-5, 1e-4, 1e-3)
_LEAST_SHARE = 0.9  # of the fall in float32 that is kept, at the usual rates for LoRA
_USUAL_RATE = 1e-4


def fall(targets: str, dtype: torch.dtype, learning_rate: float, num_steps: int) -> float:
    """Return the fall of the mean loss per label."""
    torch.manual_seed(0)
    model: Any = new_model(small_config("qwen3_moe"), RunConfig(profile="t"), torch.device("cpu"))
    model = enlarge(model).to(torch.bfloat16).to(dtype)  # the same weights in both
    model = add_method(model, TrainConfig(method="lora", lora_rank=8, lora_targets=targets))
    summed, batch = SummedLoss(model), collate(samples())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], learning_rate)
    losses = []
    for _ in range(num_steps + 1):
        loss = summed(*batch.arguments()) / batch.num_label_tokens
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses[0] - losses[-1]


def main() -> None:
    """Train all cases, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experts")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    options = parser.parse_args()
    num_steps = 30 if options.quick else 200
    cases, ratios = {}, {}
    table = Table("adapters on", "learning rate", "fall in float32", "in bfloat16", "kept")
    for name, targets in _TARGETS.items():
        for rate in _RATES:
            whole = fall(targets, torch.float32, rate, num_steps)
            folded = fall(targets, torch.bfloat16, rate, num_steps)
            case = f"{name}, {rate:g}"
            cases[case] = {"fall_float32": whole, "fall_bfloat16": folded, "num_steps": num_steps}
            ratios[case] = folded / whole
            table.add_row(
                name, f"{rate:g}", f"{whole:.4f}", f"{folded:.4f}", f"{folded / whole:.0%}"
            )
    Console().print(table)
    holds = ratios[f"experts, {_USUAL_RATE:g}"] >= _LEAST_SHARE
    if options.json:
        found = {"machine": machine(), "cases": cases, "ratios": ratios, "holds": holds}
        print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
