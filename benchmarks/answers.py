"""The price of keeping answers while a model learns: runs with the evolution tracker and without.

`python -m benchmarks.answers [--pairs N] [--ranks N] [--steps N] [--json]`: runs of `tiny` in
turns. Its evaluations do not answer (train.eval_generate=false), as in 14b and 32b, so that the
tracker has all to do by itself. What it says it took stands beside what the runs differ by, in
seconds of their training and in seconds of CPU.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.turns import Compared
from rundir.events import Event, read_events
from rundir.paths import ROOT, RunDir

_MOST_SHARE = 0.02  # of the run's time: train.evolution_share
_SETTINGS = {
    "with": ("train.eval_generate=false",),
    "without": ("train.eval_generate=false", "train.evolution_prompts=0"),
}


def train(settings: tuple[str, ...], num_ranks: int, num_steps: int) -> dict[str, Any]:
    """Train `tiny` once. Raises CalledProcessError if it fails."""
    words = [word for one in settings for word in ("--set", one)]
    words += ["--num-gpus", str(num_ranks), "--set", f"train.max_steps={num_steps}"]
    before = _cpu_s()
    with tempfile.TemporaryDirectory(prefix="answers-") as name:
        subprocess.run(
            [sys.executable, "-P", "-m", "launch", "run", "tiny", *words],
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "AIRLOCK_RUNS_DIR": name},
            stdout=sys.stderr,
            check=True,
        )
        run = RunDir((Path(name) / "latest").resolve())
        events = read_events(run.events)
        files = sorted((run.path / "evolution").glob("*/*.json"))
        snapshots = [json.loads(one.read_text("utf-8")) for one in files]
    began, ended = (_mono(events, mark) for mark in ("train.plan", "train.result"))
    return {
        "train_s": ended - began,
        "cpu_s": _cpu_s() - before,
        "answers_s": sum(one["cost"]["seconds"] for one in snapshots),
        "steps": [one["training_step"] for one in snapshots],
        "left_out": [step for one in snapshots for step in one["left_out_steps"]],
        "accuracy": [one["summary"]["accuracy"] for one in snapshots],
    }


def _mono(events: list[Event], mark: str) -> float:
    return next(float(one["mono"]) for one in events if one["name"] == mark)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(num_pairs: int, num_ranks: int, num_steps: int) -> dict[str, Any]:
    """Train in turns, the first of each pair by turns too."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _SETTINGS}
    for number in range(num_pairs):
        for name in sorted(_SETTINGS, reverse=bool(number % 2)):
            found[name].append(train(_SETTINGS[name], num_ranks, num_steps))
    on, off = found["with"], found["without"]
    ratios = {
        f"{part}_with_to_without": asdict(
            Compared.of([one[part] for one in on], [one[part] for one in off])
        )
        for part in ("train_s", "cpu_s")
        if num_pairs > 1
    }
    share = statistics.median(one["answers_s"] / one["train_s"] for one in on)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {num_ranks} ranks",
        "cases": found,
        "ratios": ratios | {"share_of_time": share},
        "holds": share <= _MOST_SHARE,
    }


@click.command()
@click.option("--pairs", "num_pairs", default=6, show_default=True, help="Runs with and without.")
@click.option("--ranks", "num_ranks", default=2, show_default=True, help="Ranks of each.")
@click.option("--steps", "num_steps", default=400, show_default=True, help="Steps of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one object as the last line.")
def main(*, num_pairs: int, num_ranks: int, num_steps: int, as_json: bool) -> None:
    """Measure what the answers cost."""
    told = measure(num_pairs, num_ranks, num_steps)
    print(json.dumps(told) if as_json else json.dumps(told, indent=1))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
