"""A hybrid's throughput by `data.packing`: rows that are shared, batches by length, and padding.

Part of `python -m benchmarks.throughput --hybrid`. All are Airlock with the same model (gated delta
nets and attention), samples of uneven length, and order; they train in turns. Processor time is
told as well: it remains comparable when other programs are busy beside them.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.trainings.same_training import ARCHITECTURE, OURS, Training, Work, synthetic
from benchmarks.turns import Compared, begin, speeds, take_turns

WAYS = {"packed": "auto", "by length": "by_length", "padded": "false"}
_ARCHITECTURE = ARCHITECTURE | {
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_experts": 0,
    "mlp_only_layers": [0, 1, 2, 3],
}
_WARM_STEPS, _STEPS, _TURN_S, _TIMEOUT_S = 4, 1500, 3.0, 600.0
_COMPARED_STEPS = 20  # of losses: later ones differ by rounding, which grows


def compare_ways(num_ranks: int, num_turns: int) -> dict[str, Any]:
    """Train in each way, in turns; return tokens per second, ratios to padding and losses."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-")))
        recipe = synthetic(folder, is_even=False, steps=_STEPS, architecture=_ARCHITECTURE)
        work = Work(folder, recipe)
        trainings, clocks = {}, {}
        for name, packing in WAYS.items():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-")))
            more = {"data.packing": packing}
            training = stack.enter_context(Training(OURS, work, num_ranks, scratch, more))
            clocks[name] = begin(training, _WARM_STEPS, _TIMEOUT_S)
            trainings[name] = training
        before = {name: _spent(one) for name, one in trainings.items()}
        take_turns(trainings, clocks, num_turns=num_turns, turn_s=_TURN_S, timeout_s=_TIMEOUT_S)
        found = {
            name: speeds(clocks[name], training.ends(), work.step_tokens)
            for name, training in trainings.items()
        }
        after = {name: _spent(one) for name, one in trainings.items()}
        losses = {name: training.losses() for name, training in trainings.items()}
    num = min(_COMPARED_STEPS, *map(len, losses.values()))
    padded = losses["padded"]
    return {
        "tokens_per_s": {name: round(statistics.median(one)) for name, one in found.items()},
        "speed_ratio": {
            name: asdict(Compared.of(found[name], found["padded"]))
            for name in ("packed", "by length")
        },
        "cpu_s_per_1000_tokens": {
            name: round(_cpu_s_a_token(work, before[name], after[name]) * 1000, 3) for name in found
        },
        "num_steps_compared": num,
        "largest_loss_difference": {
            name: max(abs(one[step] - padded[step]) for step in range(num))
            for name, one in losses.items()
        },
    }


def _spent(training: Training) -> tuple[int, float]:
    """Return (steps done, seconds of processor time), of a suspended training."""
    return len(training.ends()), training.tree.cpu_s()


def _cpu_s_a_token(work: Work, before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / sum(work.step_tokens[before[0] : after[0]])


def print_ways(results: dict[str, dict[str, Any]]) -> None:
    """Print a row for each way."""
    table = Table(
        "hybrid", "data.packing", "tokens/s", "of padding's", "95 %", "CPU s/1,000", "losses"
    )
    for case, one in results.items():
        for name, packing in WAYS.items():
            ratio = one["speed_ratio"].get(name)
            table.add_row(
                case,
                f"{name} ({packing})",
                f"{one['tokens_per_s'][name]:,}",
                "" if ratio is None else f"{ratio['mean']:.2f} times",
                "" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}",
                f"{one['cpu_s_per_1000_tokens'][name]:.2f}",
                f"{one['largest_loss_difference'][name]:.1e}",
            )
    Console(width=110).print(table)
