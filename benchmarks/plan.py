"""The plan's prediction of a rank's memory, compared with real trainings.

`python -m benchmarks.plan [--quick] [--only WORDS] [--gpu] [--json]` predicts with
`train.trace`, as `airlock plan` does, and trains small models with random weights on CPU.
It measures the peak of anonymous memory above that after the imports, and how much is left after a
step. `--gpu` trains Qwen2.5-14B's shape with LoRA on one GPU, and uses
`torch.cuda.max_memory_allocated` instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.architectures.plan_shapes import GPT2, LLAMA, MULTIMODAL, QWEN3
from benchmarks.report import Ratio, machine
from benchmarks.trainings.training import Measured, has_gpu, measure
from rundir.config import SECTIONS, DataConfig, LaunchConfig, ModelConfig, RunConfig, TrainConfig
from rundir.config_file import config_text
from rundir.footprint import Footprint, read_footprints
from rundir.paths import ROOT

_AT_MOST = 0.05
_MB = 1e6


def case(
    architecture: dict[str, Any],
    *,
    method: str = "full",
    checkpointing: bool = False,
    samples: int = 2,
    num_micro_batches: int = 1,
    num_ranks: int = 1,
    **model: Any,
) -> RunConfig:
    """Return a training with micro-batches of `samples` samples, 1,024 tokens each."""
    return RunConfig(
        profile="benchmark",
        architecture=architecture,
        model=ModelConfig(gradient_checkpointing=checkpointing, **{"dtype": "float32", **model}),
        data=DataConfig(path="made", max_seq_length=1024, packing=False),  # all as long as a row
        train=TrainConfig(
            method=method,  # type: ignore[arg-type]
            micro_batch_size=samples,
            global_batch_size=samples * num_micro_batches * num_ranks,
        ),
        launch=LaunchConfig(num_ranks=num_ranks, device="cpu", load="random", needs_gpu=False),
    )


CASES = {
    "qwen3, full": case(QWEN3),
    "qwen3, LoRA, checkpointing": case(QWEN3, method="lora", checkpointing=True, samples=4),
    "qwen3, LoRA": case(QWEN3, method="lora"),
    "qwen3, full, checkpointing": case(QWEN3, checkpointing=True),
    "qwen3, full, 3 micro-batches": case(QWEN3, num_micro_batches=3),
    "qwen3, LoRA, 3 micro-batches": case(QWEN3, method="lora", num_micro_batches=3),
    "qwen3, full, 2 ranks": case(QWEN3, num_ranks=2),
    "qwen3, full, 2 ranks, 2 micro-batches": case(QWEN3, num_ranks=2, num_micro_batches=2),
    "llama, tied, full": case(LLAMA),
    "llama, tied, full, eager attention": case(LLAMA, attention="eager"),
    "gpt2, LoRA": case(GPT2, method="lora"),
    "gpt2, full": case(GPT2),
    "qwen3_vl, its towers kept, LoRA": case(MULTIMODAL["qwen3_vl"], method="lora", towers="keep"),
    # Small, because a CPU without bfloat16 instructions takes minutes for a step of the others. But
    # not tiny: on a CPU that has them, oneDNN holds 26 MB of its own, whatever the model.
    "qwen3, full, bfloat16": case(
        QWEN3 | {"num_hidden_layers": 2, "vocab_size": 4096}, samples=8, dtype="bfloat16"
    ),
}
# Each kind in one of these ways, in turn.
_WAYS: dict[str, dict[str, Any]] = {
    "LoRA": {"method": "lora"},
    "full, 2 ranks": {"num_ranks": 2},
    "LoRA, checkpointing": {"method": "lora", "checkpointing": True},
    "full": {},
}
CASES |= {
    f"{kind} for text, {way}": case(MULTIMODAL[kind], **_WAYS[way])
    for kind, way in zip(MULTIMODAL, cycle(_WAYS), strict=False)
}
_QUICK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One case, summed over its ranks: `held` is the memory after a step, `above` the rest."""

    predicted_peak_bytes: int
    measured_peak_bytes: int
    predicted_held_bytes: int
    measured_held_bytes: int
    predict_s: float  # including imports
    peak_moment: str

    @property
    def peak_error(self) -> float:
        """The relative error of the predicted peak."""
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1

    @property
    def above_error(self) -> float:
        """The relative error of what comes on top: activations, logits, gradients."""
        predicted = self.predicted_peak_bytes - self.predicted_held_bytes
        return predicted / (self.measured_peak_bytes - self.measured_held_bytes) - 1


def compare(config: RunConfig) -> Compared:
    """Predict, then train. Raises RuntimeError when either fails."""
    with tempfile.TemporaryDirectory(prefix="plan-") as name:
        folder = Path(name)
        begin = time.monotonic()
        found = predict(config, folder)
        predict_s = time.monotonic() - begin
        measured = measure(config, folder)
    return compared(found, measured, config.launch.num_ranks, predict_s)


def compared(
    found: Footprint, measured: Measured, num_ranks: int, predict_s: float = 0.0
) -> Compared:
    """Put the two side by side. DDP keeps its buckets, which are as large as the gradients."""
    held = found.weights_bytes + found.gradients_bytes + found.optimizer_bytes
    return Compared(
        predicted_peak_bytes=found.peak_bytes * num_ranks,
        measured_peak_bytes=measured.peak_bytes,
        predicted_held_bytes=held * num_ranks,
        measured_held_bytes=measured.held_bytes,
        predict_s=round(predict_s, 2),
        peak_moment=found.peak_moment,
    )


def predict(config: RunConfig, folder: Path) -> Footprint:
    """Ask as `airlock plan` does. Raises RuntimeError with the tracer's output."""
    question, answer = folder / "question.toml", folder / "answer.json"
    question.write_text(config_text(config, {}), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "train.trace",
            str(answer),
            str(question),
            "--device",
            config.launch.device,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    (found,) = read_footprints(answer)
    return found


def gpu_case() -> RunConfig:
    """Return profiles/14b.toml on one GPU, with random weights and two micro-batches a step."""
    import tomllib

    table = tomllib.loads((ROOT / "profiles" / "14b.toml").read_text(encoding="utf-8"))
    table["launch"] = {"num_ranks": 1, "device": "cuda", "load": "random"}
    table["data"] |= {"path": "made", "max_seq_length": 2048}
    table["train"] |= {"global_batch_size": 2}
    sections = {name: cls(**table.get(name, {})) for name, cls in SECTIONS.items()}
    return RunConfig(profile="14b", architecture=table["architecture"], **sections)


def main() -> None:
    """Compare, print the table, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan")
    parser.add_argument("--quick", action="store_true", help="two cases, in 3 minutes")
    parser.add_argument("--only", default="", help="cases that have these words in their names")
    parser.add_argument("--gpu", action="store_true", help="14B LoRA on one GPU, and nothing else")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    cases = {name: config for name, config in CASES.items() if options.only in name}
    skipped: dict[str, str] = {}
    if not cases:
        parser.error(f"no case has {options.only!r} in its name: {'; '.join(CASES)}")
    if options.quick:
        cases = dict(list(cases.items())[:_QUICK])
    if options.gpu:
        cases = {"14b, LoRA, on a GPU": gpu_case()}
        if not has_gpu():
            skipped, cases = dict.fromkeys(cases, "torch sees no GPU here"), {}
    results = {}
    for name, config in cases.items():
        results[name] = compare(config)
        print(f"{name}: peak off by {results[name].peak_error:+.1%}", file=sys.stderr, flush=True)  # noqa: T201
    values = claims(results)
    holds: bool | str = all(value["holds"] for value in values.values())
    if holds and (skipped or options.quick or options.only):
        holds = "incomplete"
    print_table(results)
    if options.json:
        figures = {name: dataclasses.asdict(one) for name, one in results.items()}
        found = {"machine": machine(), "cases": figures, "ratios": values, "holds": holds}
        print(json.dumps({**found, "skipped": skipped}))  # noqa: T201


def claims(results: dict[str, Compared]) -> dict[str, dict[str, float | bool]]:
    """Return the error of each prediction, and whether it is within the limit."""
    return {
        f"{name}: {what}, off by": Ratio([abs(error)], _AT_MOST).as_dict()
        for name, one in results.items()
        for what, error in (("peak", one.peak_error), ("above what is held", one.above_error))
    }


def print_table(results: dict[str, Compared]) -> None:
    """Print the cases for people."""
    table = Table(
        "case",
        "peak, MB: predicted",
        "measured",
        "off",
        "above held, MB: predicted",
        "measured",
        "off",
        title="memory of all ranks",
    )
    for name, one in results.items():
        above = (
            one.predicted_peak_bytes - one.predicted_held_bytes,
            one.measured_peak_bytes - one.measured_held_bytes,
        )
        table.add_row(
            name,
            f"{one.predicted_peak_bytes / _MB:,.0f}",
            f"{one.measured_peak_bytes / _MB:,.0f}",
            f"{one.peak_error:+.1%}",
            f"{above[0] / _MB:,.0f}",
            f"{above[1] / _MB:,.0f}",
            f"{one.above_error:+.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
