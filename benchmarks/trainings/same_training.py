"""The same training for Airlock and its peers: model, sample order, batch, optimizer."""

from __future__ import annotations

import json
import math
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.starts.launchers import accelerate
from benchmarks.tree import Tree
from rundir.config import ModelConfig, RunConfig
from rundir.events import RunEvents
from rundir.paths import ROOT, RunDir

_BIN = Path(sys.executable).parent
_PEERS = Path(__file__).with_name("peer_training.py")
OURS, PEERS = "airlock", ("bare", "trainer", "accelerate")
_ROW_TOKENS = 128
ARCHITECTURE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The model, data and hyperparameters of a training that all of them run."""

    architecture: dict[str, Any]
    data: Path
    row_tokens: int = _ROW_TOKENS
    global_batch: int = 16
    micro_batch: int = 4
    learning_rate: float = 1e-3
    warmup_steps: int = 4
    steps: int


def synthetic(
    folder: Path, *, is_even: bool, steps: int, architecture: dict[str, Any] | None = None
) -> Recipe:
    """Generate random samples, either all as long as a row or of uneven length."""
    shape = architecture or ARCHITECTURE
    recipe = Recipe(architecture=shape, data=folder / "data.jsonl", steps=steps)
    num_samples, draw = recipe.steps * recipe.global_batch, np.random.default_rng(0)
    # Lengths as in instruction data: most are short, a few are long (log-normal).
    lengths = np.exp(draw.normal(math.log(_ROW_TOKENS / 5), 0.8, num_samples)).astype(int)
    lengths = np.full(num_samples, _ROW_TOKENS) if is_even else lengths.clip(24, _ROW_TOKENS)
    recipe.data.write_text("".join(_row(draw, int(one)) for one in lengths), encoding="utf-8")
    return recipe


def tiny() -> Recipe:
    """Return profiles/tiny.toml without weight decay, at a constant rate after the warm-up.

    The rate is a third of the profile's: at its 3e-3, rounding errors grow so fast that after 50
    steps the Trainer's losses on two ranks differ from its own on one by 8e-4.
    """
    table = tomllib.loads((ROOT / "profiles" / "tiny.toml").read_text(encoding="utf-8"))
    return Recipe(
        architecture=table["architecture"],
        data=ROOT / table["data"]["path"],
        row_tokens=table["data"]["max_seq_length"],
        learning_rate=1e-3,
        global_batch=64,
        micro_batch=16,
        steps=50,
        warmup_steps=table["train"]["warmup_steps"],
    )


class Work:
    """A recipe in a folder: its model, and its samples in Airlock's order.

    With `model`, the peers train a model that is there already, as `settings` say
    (benchmarks/trainings/peer_training.py).
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        *,
        model: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        from train.batches.course import Course
        from train.batches.epoch_order import Order
        from train.data.dataset import SampleFile
        from train.data.path_samples import prepare_path
        from train.data.samples import Recipe
        from train.model.make_checkpoint import make_checkpoint

        self.folder, self.recipe, self.model = folder, recipe, model or folder / "model"
        described = RunConfig(
            profile="throughput",
            architecture=recipe.architecture,
            model=ModelConfig(dtype="float32"),
        )
        if model is None:
            make_checkpoint(described, self.model)
        rows = Recipe(max_seq_length=recipe.row_tokens, with_texts=True)
        samples = SampleFile(prepare_path(recipe.data, self.model, rows)[0])
        order = Order(Course(num_rows=len(samples), batch_size=recipe.global_batch))
        steps = [[samples[i] for i in order.step_indices(step)] for step in range(recipe.steps)]
        self.step_tokens = [sum(len(tokens) for tokens, _ in step) for step in steps]
        in_order = [
            {"input_ids": tokens.tolist(), "num_prompt": int(ranges[0, 0])}
            for step in steps
            for tokens, ranges in step
        ]
        (folder / "samples.json").write_text(json.dumps(in_order), encoding="utf-8")
        shared = ("steps", "global_batch", "micro_batch", "learning_rate", "warmup_steps")
        told = {name: getattr(recipe, name) for name in shared} | {"model": str(self.model)}
        text = json.dumps(told | dict(settings or {}))
        (folder / "settings.json").write_text(text, encoding="utf-8")


def _row(draw: np.random.Generator, length: int) -> str:
    """Return a row of `length` tokens, including the three that the template adds."""
    letters = "".join(draw.choice(list("abcdefgh"), length - 3))
    cut = len(letters) // 3
    return json.dumps({"prompt": letters[:cut], "response": letters[cut:]}) + "\n"


class Training:
    """A training that has been started; no process of it is left after the block."""

    def __init__(
        self,
        who: str,
        work: Work,
        num_ranks: int,
        scratch: Path,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `more` are settings of Airlock beyond those that all have."""
        self.who = who
        self._losses: list[float] = []
        self._ends: list[float] = []
        self._runs, self._told = scratch / "runs", work.folder / f"{who}.steps"
        self._told.unlink(missing_ok=True)
        self._events: RunEvents | None = None
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_ranks)),
            "ACCELERATE_USE_CPU": "true",
            "AIRLOCK_RUNS_DIR": str(self._runs),
            # Its own: one that is suspended may hold a lock there, for which others would wait.
            "AIRLOCK_CACHE_DIR": str(scratch / "cache"),
            "AIRLOCK_GATE_DIR": str(scratch / "gate"),
        }
        self.tree = Tree(_command(who, work, num_ranks, more or {}), env, scratch)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        self.tree.__exit__(*error)

    def ends(self) -> list[float]:
        """Return the end time of each step so far, in seconds on the monotonic clock."""
        self._look()
        return self._ends

    def losses(self) -> list[float]:
        """Return the loss of each step so far."""
        self._look()
        return self._losses

    def said(self) -> str:
        """Return the end of the printed output."""
        return self.tree.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _look(self) -> None:
        if self.who != OURS:
            text = self._told.read_text(encoding="utf-8") if self._told.exists() else ""
            steps = [line.split() for line in text.split("\n")[:-1]]
            self._ends, self._losses = ([float(one[i]) for one in steps] for i in (0, 1))
            return
        latest = self._runs / "latest"
        if self._events is None and latest.exists():
            self._events = RunEvents(RunDir(latest.resolve()).events)
        for event in self._events.new_events() if self._events else ():
            if (event["kind"], event["name"]) == ("metric", "train"):
                self._ends.append(event["mono"])
                self._losses.append(event["loss"])


def _command(who: str, work: Work, num_ranks: int, more: Mapping[str, str]) -> list[str]:
    if who == OURS:
        recipe = work.recipe
        settings = {
            "model.path": work.model,
            "data.path": recipe.data,
            "data.eval_path": "",
            "data.max_seq_length": recipe.row_tokens,
            "train.max_steps": recipe.steps,
            "train.global_batch_size": recipe.global_batch,
            "train.seed": 0,
            "train.micro_batch_size": recipe.micro_batch,
            "train.schedule": "constant",
            "train.learning_rate": recipe.learning_rate,
            "train.warmup_steps": recipe.warmup_steps,
            "train.weight_decay": 0,
            "train.log_every_steps": 1,
            **more,
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [
            sys.executable,
            "-P",
            "-m",
            "launch",
            "run",
            "tiny",
            "--num-gpus",
            str(num_ranks),
            *options,
        ]
    script = [str(_PEERS), who, str(work.folder)]
    if who == "accelerate":
        return [*accelerate(num_ranks), *script]
    return [str(_BIN / "torchrun"), "--standalone", f"--nproc-per-node={num_ranks}", *script]
