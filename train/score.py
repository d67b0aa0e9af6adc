"""Evaluation without training (`airlock evaluate`): what a rank does after the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ranks.group import meet, part
from ranks.watchdog import start_watchdog
from rundir.checkpoints import step_of
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from train.evaluation.all_sets import evaluation_sets
from train.evaluation.evaluator import Evaluator
from train.model.loss import SummedLoss
from train.step.checkpoint import load_weights
from train.step.selftest import head_kind
from train.step.try_attention import settle_attention


def score(config: RunConfig, run: RunDir, model: Any, events: EventWriter) -> None:
    """Evaluate `model` on all named sets, with the other ranks; rank 0 keeps the examples."""
    assert config.scoring is not None
    pulse = start_watchdog(run)
    device = next(model.parameters()).device
    ranks = meet(device, events, config.launch.collective_timeout_s, pulse)
    step = 0
    if config.scoring.checkpoint:
        checkpoint = Path(config.scoring.checkpoint)
        load_weights(checkpoint, SummedLoss(model))  # as a training names them
        step = step_of(checkpoint)
    settle_attention(model, config)
    sets = evaluation_sets(config, run, ranks, model, head=head_kind(model))
    assert sets is not None
    for named in sets.named:
        named.evaluate(step)
        if ranks.is_first and config.scoring.per_example:
            _keep(run, named)
    unmeasured = dict.fromkeys(("tokens_per_s", "mfu", "hfu", "gpu_peak_bytes", "checkpoint"))
    ranks.mark("train.result", result="done", step=step, **unmeasured)
    part(ranks)


def _keep(run: RunDir, evaluator: Evaluator) -> None:
    """Append the examples of a set to examples.jsonl, one on a line."""
    with (run.path / "examples.jsonl").open("a", encoding="utf-8") as file:
        for row in evaluator.examples:
            _, _, number = evaluator.samples.origin(row["example_id"])
            kept = {key: value for key, value in row.items() if key != "step"}
            line = {"set": evaluator.name, "row": number, **kept}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
