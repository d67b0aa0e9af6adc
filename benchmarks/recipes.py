"""Other people's trainers behind torchrun, and behind Airlock at their first and second start.

`python -m benchmarks.recipes [--pairs N] [--num-ranks N] [--json]` runs TRL's own SFT command on a
small model with random weights, whole, in turns: CPU seconds of all its processes, seconds, and the
losses, which must be the same.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.report import machine
from launch.config.resolve import resolve
from rundir.paths import ROOT
from train.model.make_checkpoint import make_checkpoint

_WAYS = ("torchrun", "first start", "second start")
_MODULE = "trl.scripts.sft"
_LOSS = re.compile(r"'loss': '?([\d.]+)")
_ROWS = 200


def _make(folder: Path) -> None:
    make_checkpoint(resolve("tiny", [], {})[0], folder / "model")
    (folder / "data").mkdir()
    rows = [json.dumps({"prompt": f"{i} + 1 = ", "completion": str(i + 1)}) for i in range(_ROWS)]
    (folder / "data/train.jsonl").write_text("\n".join(rows))


def _command(way: str, num_ranks: int) -> list[str]:
    if way == "torchrun":
        program = str(Path(sys.executable).with_name("torchrun"))
        start = [program, "--standalone", f"--nproc-per-node={num_ranks}", "-m", _MODULE]
    else:
        words = ["run", "--num-gpus", str(num_ranks), "-m", _MODULE]
        start = [sys.executable, "-P", "-m", "launch", *words]
    options = (
        "--model_name_or_path model --dataset_name data --max_steps 4 --logging_steps 1 "
        "--per_device_train_batch_size 2 --output_dir out --report_to none --use_cpu "
        "--save_strategy no"
    )
    return [*start, *options.split()]


def _measured(way: str, folder: Path, num_ranks: int) -> dict[str, Any]:
    """Run it once; return its CPU seconds and seconds, and the losses of its steps."""
    cache = folder / "cache"
    if way == "first start":
        shutil.rmtree(cache / "imports", ignore_errors=True)
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "AIRLOCK_CACHE_DIR": str(cache),
        "AIRLOCK_RUNS_DIR": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
    }
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        _command(way, num_ranks), cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise click.ClickException(f"{way} failed:\n{done.stdout}{done.stderr}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    losses = _LOSS.findall(done.stdout + done.stderr)
    return {"cpu_s": cpu_s, "seconds": seconds, "losses": losses}


@click.command()
@click.option("--pairs", default=5)
@click.option("--num-ranks", default=2)
@click.option("--json", "as_json", is_flag=True)
def main(pairs: int, num_ranks: int, as_json: bool) -> None:
    """Measure all ways in turn, and print medians and the ratios of pairs."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder)
        _measured("first start", folder, num_ranks)  # compiled files and the model's cache
        for _ in range(pairs):
            for way in _WAYS:
                found[way].append(_measured(way, folder, num_ranks))
    wanted = found["torchrun"][0]["losses"]
    told: dict[str, Any] = {"machine": machine(), "num_ranks": num_ranks, "pairs": pairs}
    for way, runs in found.items():
        told[way] = {
            figure: round(statistics.median(run[figure] for run in runs), 2)
            for figure in ("cpu_s", "seconds")
        } | {"same_losses": bool(wanted) and all(run["losses"] == wanted for run in runs)}
        for figure in ("cpu_s", "seconds"):
            pairs_of = zip(runs, found["torchrun"], strict=True)
            ratios = sorted(run[figure] / peer[figure] for run, peer in pairs_of)
            told[way][f"{figure} ÷ torchrun's"] = [
                round(value, 3) for value in (ratios[0], statistics.median(ratios), ratios[-1])
            ]
    click.echo(json.dumps(told, indent=None if as_json else 1, ensure_ascii=False))


if __name__ == "__main__":
    main()
