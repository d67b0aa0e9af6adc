"""Run folders with events as training writes them, of any length."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rundir.events import Event

_KEEP = 5000  # random figures that are used over and over: making them is not what is measured
_DISTINCT = 8  # runs with figures of their own; the others have copies of theirs


def write_runs(folder: Path, num_runs: int, steps: int) -> None:
    """Write run folders, with an event of training for each step, and evaluations."""
    made: list[Path] = []
    for number in range(num_runs):
        run = folder / f"20260101-{number:06d}-long-{number:04x}"
        (run / "events").mkdir(parents=True)
        (run / "logs").mkdir()
        (run / "config.toml").write_text("")
        status = {"run_id": run.name, "phase": "done", "exit_code": 0, "step": steps}
        (run / "status.json").write_text(json.dumps(status))
        to = run / "events" / "rank0.jsonl"
        if number >= _DISTINCT:
            shutil.copyfile(made[number % _DISTINCT], to)
            continue
        made.append(to)
        with to.open("w") as file:
            for event in events(number, steps):
                file.write(json.dumps(event) + "\n")


def events(seed: int, steps: int) -> Iterator[Event]:
    """Yield the metrics of one run."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    noise = [chance.random() for _ in range(_KEEP)]
    for step in range(1, steps + 1):
        figure = noise[step % _KEEP]
        yield _event(
            seed,
            step,
            name="train",
            loss=2 / (1 + step / 1000) + figure / 10,
            lr=3e-4 * (1 - step / steps),
            grad_norm=figure,
            tokens_per_s=120_000 + 100 * figure,
            mfu=0.4 + figure / 100,
            time_data_s=figure / 1000,
            time_forward_s=0.03 + figure / 1000,
            time_backward_s=0.06 + figure / 1000,
            time_comm_s=figure / 10_000,
            time_optimizer_s=0.002 + figure / 10_000,
        )
        if step % 1000 == 0:
            yield _event(seed, step, name="eval", loss=2 / (1 + step / 1000), exact_match=figure)


def _event(seed: int, step: int, **fields: Any) -> Event:
    when = {"t": 1.79e9 + seed * 1e5 + step * 0.1, "mono": 1000.0 + step * 0.1}
    who = {"node": 0, "attempt": 0, "rank": 0, "pid": 1000, "kind": "metric"}
    return {"v": 1, **when, **who, "step": step, **fields}
