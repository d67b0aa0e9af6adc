"""What becomes of small updates: `tiny`, trained whole in bfloat16, by each way to update weights.

`python -m benchmarks.bf16_updates [--quick] [--json] [--out FILE] [--picture FILE]` trains the same
bfloat16 checkpoint, with the same data and seed, in float32 and in bfloat16 with each setting of
train.bf16_updates, at a learning rate that is too low for bfloat16 and at the profile's own. A way
learns if the loss on held-out data falls as far as in float32, within a tenth of the fall.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loss_picture import curves_svg
from benchmarks.report import machine
from launch.config.resolve import resolve
from rundir.events import read_events

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("float32", "master", "stochastic", "plain")
RATES = (3e-5, 3e-3)
_NUM_STEPS, _NUM_QUICK = 200, 20
_LEAST_OF_FALL = 0.9
_SHOWN = (1, 50, 100, 150, 200)

Cases = dict[str, dict[str, Any]]


def main() -> None:
    """Train, print a table, and write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bf16_updates")
    parser.add_argument("--quick", action="store_true", help=f"{_NUM_QUICK} steps only")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    parser.add_argument("--out", type=Path, help="a file for the curves, JSON")
    parser.add_argument("--picture", type=Path, help="a file for the curves, SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = measured(Path(folder), _NUM_QUICK if options.quick else _NUM_STEPS)
    Console(width=120).print(table(cases))
    found, holds = claims(cases)
    whole = {"machine": machine(), "cases": cases, "ratios": found, "holds": holds}
    if options.out:
        options.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    if options.picture:
        options.picture.write_text(picture(cases), encoding="utf-8")
    if options.json:
        print(json.dumps(whole))  # noqa: T201


def measured(folder: Path, num_steps: int) -> Cases:
    """Return the curves of every way at every rate."""
    from train.model.make_checkpoint import make_checkpoint

    base = folder / "base"
    make_checkpoint(resolve("tiny", ("model.dtype=bfloat16",), {})[0], base)
    return {
        name_of(way, rate): trained(folder / name_of(way, rate), base, way, rate, num_steps)
        for rate in RATES
        for way in WAYS
    }


def name_of(way: str, rate: float) -> str:
    """Return the name of a case."""
    return f"{way} {rate:g}"


def trained(runs: Path, base: Path, way: str, rate: float, num_steps: int) -> dict[str, Any]:
    """Train `tiny` once; return its losses. Raises CalledProcessError if the run fails."""
    settings = {
        "model.path": base,
        "model.dtype": "float32" if way == "float32" else "bfloat16",
        "train.bf16_updates": "auto" if way == "float32" else way,
        "train.learning_rate": rate,
        "train.max_steps": num_steps,
        "train.log_every_steps": 1,
        "train.eval_generate": "false",
        "train.checkpoint_every_steps": 0,
        "launch.threads_per_rank": 1,
    }
    command = [sys.executable, "-P", "-m", "train", "tiny"]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    env = os.environ | {"PYTHONPATH": str(ROOT), "AIRLOCK_RUNS_DIR": str(runs)}
    subprocess.run(command, env=env, cwd=ROOT, check=True, stdout=sys.stderr)
    events = list(read_events((runs / "latest").resolve() / "events"))
    metrics = [event for event in events if event["kind"] == "metric"]
    held_out = [event["loss"] for event in metrics if event["name"] == "eval"]
    curve = [round(event["loss"], 4) for event in metrics if event["name"] == "train"]
    return {"losses": curve, "eval_before": held_out[0], "eval_after": held_out[-1]}


def fall(case: dict[str, Any]) -> float:
    """Return by how much the loss on held-out data has fallen."""
    return float(case["eval_before"] - case["eval_after"])


def share(cases: Cases, way: str, rate: float) -> float:
    """Return the share of the fall in float32 that a way has reached at that rate."""
    return fall(cases[name_of(way, rate)]) / fall(cases[name_of("float32", rate)])


def claims(cases: Cases) -> tuple[dict[str, float], bool]:
    """Return each way's share of the fall in float32, and whether the remedies learn as much."""
    found = {
        name_of(way, rate): round(share(cases, way, rate), 4) for rate in RATES for way in WAYS[1:]
    }
    remedies = [one for name, one in found.items() if not name.startswith("plain")]
    return found, all(one >= _LEAST_OF_FALL for one in remedies)


def picture(cases: Cases) -> str:
    """Return the curves as an SVG, a panel for each rate."""
    panels = {
        f"learning rate {rate:g}": {way: cases[name_of(way, rate)]["losses"] for way in WAYS}
        for rate in RATES
    }
    return curves_svg(panels, "Training loss of tiny by the way in which weights are updated")


def table(cases: Cases) -> Table:
    """Return the losses of some steps, and on held-out data."""
    steps = [f"step {step}" for step in _SHOWN]
    made = Table("learning rate", "updates", *steps, "held out", "of the fall in float32")
    for rate in RATES:
        for way in WAYS:
            case = cases[name_of(way, rate)]
            curve = case["losses"]
            losses = [f"{curve[step - 1]:.3f}" if step <= len(curve) else "" for step in _SHOWN]
            held_out = f"{case['eval_before']:.3f} → {case['eval_after']:.3f}"
            made.add_row(f"{rate:g}", way, *losses, held_out, f"{share(cases, way, rate):.1%}")
    return made


if __name__ == "__main__":
    main()
