"""Training itself, beside others: tokens per second, memory and loss of the same work.

`python -m benchmarks.throughput [--quick] [--ranks N…] [--repeat N] [--json]` trains a small
model of random weights on 1, 2 and 4 CPU ranks: with Airlock, a bare DDP loop and the Hugging Face
Trainer under torchrun, and accelerate launch. Same model, samples, order, batch, optimizer. Samples
are either all as long as a row, so that there is nothing to be gained by packing, or of uneven
length.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.report import machine
from benchmarks.tree import PeakMemory, Tree
from rundir.config import ModelConfig, RunConfig
from rundir.events import read_events
from rundir.paths import RunDir

ROOT = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_PEERS = Path(__file__).with_name("peer_training.py")
OURS, PEERS = "airlock", ("bare", "trainer", "accelerate")
_WARM_STEPS = 4  # the first ones make states and buckets, whoever trains
_ROW_TOKENS = 128
_TIMEOUT_S = 600.0
_EVERY_S = 0.25
_T_975 = {
    2: 12.71,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
}  # Student's
_ARCHITECTURE = {
    "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One training: its speed after the first steps, its losses, and the memory of all processes.

    Memory is the highest proportional set size, or 0 where speed was measured: looking costs time.
    """

    tokens_per_s: float
    losses: tuple[float, ...]
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how, by all of them."""

    architecture: dict[str, Any]
    data: Path
    row_tokens: int = _ROW_TOKENS
    global_batch: int = 16
    micro_batch: int = 4
    learning_rate: float = 1e-3
    warmup_steps: int = 4
    steps: int = 24


def synthetic(folder: Path, *, is_even: bool) -> Recipe:
    """Random samples, each as long as a row, or of uneven length."""
    recipe = Recipe(architecture=_ARCHITECTURE, data=folder / "data.jsonl")
    num_samples, draw = recipe.steps * recipe.global_batch, np.random.default_rng(0)
    # Of the lengths of instruction data: most are short, a few are long (log-normal).
    lengths = np.exp(draw.normal(math.log(_ROW_TOKENS / 5), 0.8, num_samples)).astype(int)
    lengths = np.full(num_samples, _ROW_TOKENS) if is_even else lengths.clip(24, _ROW_TOKENS)
    recipe.data.write_text("".join(_row(draw, int(one)) for one in lengths), encoding="utf-8")
    return recipe


def tiny() -> Recipe:
    """profiles/tiny.toml, without weight decay, at a constant learning rate after the warm-up.

    That is a third of the profile's: at its 3e-3 rounding grows so fast that after 50 steps the
    Trainer's losses on two ranks differ from its own on one by 8e-4.
    """
    table = tomllib.loads((ROOT / "profiles" / "tiny.toml").read_text(encoding="utf-8"))
    return Recipe(
        architecture=table["architecture"], data=ROOT / table["data"]["path"],
        row_tokens=table["data"]["max_seq_length"], learning_rate=1e-3,
        global_batch=64, micro_batch=16, steps=50, warmup_steps=table["train"]["warmup_steps"],
    )  # fmt: skip


class Work:
    """A recipe in a folder: its model, and its samples in the order that Airlock takes them in."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        from train.data import SampleFile
        from train.feed import Order
        from train.make_checkpoint import make_checkpoint
        from train.prepare import prepare_file

        self.folder, self.recipe, self.model = folder, recipe, folder / "model"
        described = RunConfig(
            profile="throughput", architecture=recipe.architecture,
            model=ModelConfig(dtype="float32"),
        )  # fmt: skip
        make_checkpoint(described, self.model)
        samples = SampleFile(prepare_file(recipe.data, self.model, 0, recipe.row_tokens))
        order = Order(len(samples), recipe.global_batch, 0)
        steps = [[samples[i] for i in order.step_indices(step)] for step in range(recipe.steps)]
        self.step_tokens = [sum(len(tokens) for tokens, _ in step) for step in steps]
        in_order = [
            {"input_ids": tokens.tolist(), "num_prompt": int(ranges[0, 0])}
            for step in steps for tokens, ranges in step
        ]  # fmt: skip
        (folder / "samples.json").write_text(json.dumps(in_order), encoding="utf-8")
        settings = {
            name: getattr(recipe, name)
            for name in ("steps", "global_batch", "micro_batch", "learning_rate", "warmup_steps")
        }
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    def measured(self, ends: list[float], losses: list[float], peak_bytes: int) -> Measured:
        """The figures of one training, from when its steps ended."""
        tokens, took_s = sum(self.step_tokens[_WARM_STEPS:]), ends[-1] - ends[_WARM_STEPS - 1]
        return Measured(
            tokens_per_s=tokens / took_s, losses=tuple(losses), peak_bytes=peak_bytes
        )  # fmt: skip


def _row(draw: np.random.Generator, length: int) -> str:
    """A row that comes to `length` tokens, with the three that the template adds."""
    letters = "".join(draw.choice(list("abcdefgh"), length - 3))
    cut = len(letters) // 3
    return json.dumps({"prompt": letters[:cut], "response": letters[cut:]}) + "\n"


def train(who: str, work: Work, num_ranks: int, *, looks_at_memory: bool = False) -> Measured:
    """Train once. Raises RuntimeError with what was said when it fails."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        scratch, told = Path(name), work.folder / f"{who}.json"
        told.unlink(missing_ok=True)
        env = os.environ | {
            "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_ranks)),
            "ACCELERATE_USE_CPU": "true", "AIRLOCK_RUNS_DIR": str(scratch / "runs"),
            "AIRLOCK_CACHE_DIR": str(work.folder / "cache"),
        }  # fmt: skip
        with Tree(_command(who, work, num_ranks), env, scratch) as tree:
            memory = PeakMemory(tree, _EVERY_S) if looks_at_memory else None
            try:
                tree.wait(_TIMEOUT_S)
            finally:
                peak_bytes = 0 if memory is None else memory.stop().pss_bytes
            said = tree.log.read_text(encoding="utf-8", errors="replace")
        if who == OURS:
            run = RunDir((scratch / "runs" / "latest").resolve())
            steps = [one for one in read_events(run.events) if one["name"] == "train"]
            ends, losses = [one["mono"] for one in steps], [one["loss"] for one in steps]
        else:
            found = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
            ends, losses = found.get("ends", []), found.get("losses", [])
    if len(ends) != work.recipe.steps:
        raise RuntimeError(f"{who}: {len(ends)} of {work.recipe.steps} steps\n{said[-3000:]}")
    return work.measured(ends, losses, peak_bytes)


def _command(who: str, work: Work, num_ranks: int) -> list[str]:
    if who == OURS:
        recipe = work.recipe
        settings = {
            "model.path": work.model, "data.path": recipe.data, "data.eval_path": "",
            "data.max_seq_length": recipe.row_tokens, "train.max_steps": recipe.steps,
            "train.global_batch_size": recipe.global_batch, "train.seed": 0,
            "train.micro_batch_size": recipe.micro_batch, "train.schedule": "constant",
            "train.learning_rate": recipe.learning_rate,
            "train.warmup_steps": recipe.warmup_steps, "train.weight_decay": 0,
            "train.log_every_steps": 1,
        }  # fmt: skip
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [sys.executable, "-P", "-m", "launch", "run", "tiny",
                "--num-gpus", str(num_ranks), *options]  # fmt: skip
    script = [str(_PEERS), who, str(work.folder)]
    if who == "accelerate":
        # --multi_gpu is its way to several processes on one node, whatever they compute on.
        several = ["--multi_gpu"] if num_ranks > 1 else []
        return [
            str(_BIN / "accelerate"), "launch", *several, f"--num_processes={num_ranks}",
            "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no",
            "--main_process_port=0", *script,
        ]  # fmt: skip
    return [str(_BIN / "torchrun"), "--standalone", f"--nproc-per-node={num_ranks}", *script]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Ours divided by a peer's, in pairs taken one after the other: mean and 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: list[float], theirs: list[float]) -> Compared:
        """By Student's t on the logarithms; with one pair there is no interval."""
        logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
        mean, half = statistics.fmean(logs), 0.0
        if len(logs) > 1:
            half = _T_975.get(len(logs), 2.4) * statistics.stdev(logs) / math.sqrt(len(logs))
        low, middle, high = (round(math.exp(mean + part), 4) for part in (-half, 0.0, half))
        return cls(mean=middle, low=low, high=high)


def compare(work: Work, num_ranks: int, repeat: int) -> dict[str, Any]:
    """All of them in turns, `repeat` times, and once more for their memory."""
    everyone = (OURS, *PEERS)
    found: dict[str, list[Measured]] = {who: [] for who in everyone}
    for turn in range(repeat):
        for who in everyone[turn % 2 :: 1] + everyone[: turn % 2]:
            found[who].append(train(who, work, num_ranks))
            _say(f"{num_ranks} ranks, {who}: {found[who][-1].tokens_per_s:,.0f} tokens/s")
    peaks = {who: train(who, work, num_ranks, looks_at_memory=True).peak_bytes for who in everyone}
    speeds = {who: [one.tokens_per_s for one in runs] for who, runs in found.items()}
    losses = {who: runs[0].losses for who, runs in found.items()}
    return {
        "tokens_per_s": {who: round(statistics.median(values)) for who, values in speeds.items()},
        "speed_ratio": {who: asdict(Compared.of(speeds[OURS], speeds[who])) for who in PEERS},
        "peak_bytes": peaks,
        "largest_loss_difference": {
            who: max(abs(a - b) for a, b in zip(losses[OURS], losses[who], strict=True))
            for who in PEERS
        },
        "last_loss": {who: values[-1] for who, values in losses.items()},
    }


def loss_difference(num_ranks: int = 2) -> float:
    """By how much the losses of `tiny` differ from those of the Trainer, at most."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        work = Work(Path(name), tiny())
        ours, theirs = (train(who, work, num_ranks).losses for who in (OURS, "trainer"))
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def holds(results: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What is claimed of every case: see docs/benchmarks.md."""
    made: dict[str, bool] = {}
    for name, one in results.items():
        ratio, peak = one["speed_ratio"], one["peak_bytes"]
        made[f"{name}: speed, no less than 0.98 of a bare loop's"] = ratio["bare"]["low"] >= 0.98
        made[f"{name}: speed, above the Trainer's"] = ratio["trainer"]["low"] > 1
        made[f"{name}: memory, no more than either"] = peak[OURS] <= min(
            peak["bare"], peak["trainer"]
        )
        made[f"{name}: the same losses"] = max(one["largest_loss_difference"].values()) < 1e-3
    return made


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """A row for each case and peer."""
    table = Table("case", "who", "tokens/s", "ours is", "95 %", "peak MB", "last loss")
    for name, one in results.items():
        for who in (OURS, *PEERS):
            ratio = one["speed_ratio"].get(who)
            table.add_row(
                name, who, f"{one['tokens_per_s'][who]:,}",
                "" if ratio is None else f"{ratio['mean']:.3f} times",
                "" if ratio is None else f"{ratio['low']:.3f} to {ratio['high']:.3f}",
                f"{one['peak_bytes'][who] / 1e6:,.0f}", f"{one['last_loss'][who]:.5f}",
            )  # fmt: skip
    Console(width=110).print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main() -> None:
    """Compare, print the table, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--quick", action="store_true", help="uneven samples on 2 ranks, once")
    parser.add_argument("--repeat", type=int, default=5, help="pairs for each ratio")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for kind in ("uneven",) if options.quick else ("even", "uneven"):
        with tempfile.TemporaryDirectory(prefix="throughput-") as name:
            work = Work(Path(name), synthetic(Path(name), is_even=kind == "even"))
            for num_ranks in (2,) if options.quick else options.ranks:
                repeat = 1 if options.quick else options.repeat
                results[f"{kind}, {num_ranks} ranks"] = compare(work, num_ranks, repeat)
    print_table(results)
    claims, curve = holds(results), loss_difference()
    claims["tiny: the losses of the Trainer, 50 steps, within 1e-4"] = curve < 1e-4
    _say(f"tiny, 2 ranks: losses differ from the Trainer's by {curve:.1e} at most, in 50 steps")
    if options.json:
        found = {"machine": machine(), "cases": results, "claims": claims,
                 "tiny_largest_loss_difference": curve}  # fmt: skip
        is_whole = not options.quick and options.ranks == parser.get_default("ranks")
        all_hold: bool | str = all(claims.values())
        all_hold = all_hold and (is_whole or "incomplete")
        print(json.dumps({**found, "holds": all_hold}))  # noqa: T201


if __name__ == "__main__":
    main()
