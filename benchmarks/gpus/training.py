"""Training a real shape on one GPU: speed, MFU and memory, compared with the plan's prediction."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.gpus.run import (
    Done,
    FailedError,
    GpuMemory,
    Place,
    SkippedError,
    airlock,
    follow,
)
from benchmarks.training import write_full_rows
from launch.plan.fit import Fit
from rundir.exit_codes import ExitCode
from rundir.units import size_text

_NO_PLAN = (ExitCode.USAGE, ExitCode.PREFLIGHT)  # as for a method that this version does not have
_PARTS = ("data", "forward", "backward", "comm", "optimizer")
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile with random weights, on one rank. Its rows are full: one sample in each."""

    name: str
    profile: str
    method: str
    row_tokens: int = 4096
    num_rows: int = 2  # per step; each is a micro-batch
    settings: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """Return the options that plan and run have in common."""
        settings = [
            f"train.method={self.method}",
            f"data.max_seq_length={self.row_tokens}",
            f"train.global_batch_size={self.num_rows}",
            "train.micro_batch_size=1",
            "launch.load=random",
            "data.eval_path=",
            *self.settings,
        ]
        return ["--num-gpus=1", *(f"--set={one}" for one in settings)]


CASES = (
    Case(name="14B LoRA", profile="14b", method="lora"),
    Case(name="14B QLoRA", profile="14b", method="qlora"),
    Case(name="32B QLoRA", profile="32b", method="qlora"),
    Case(name="32B LoRA", profile="32b", method="lora"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The numbers of warm-up steps and of measured steps."""

    warm: int
    measured: int


def train(case: Case, place: Place, steps: Steps, timeout_s: float) -> Figures:
    """Plan, then train and stop.

    Raises SkippedError if it does not fit or is not supported, FailedError when it fails.
    """
    if case.method == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        raise SkippedError("bitsandbytes is not installed")
    begun = time.monotonic()
    planned = _plan(case, place, timeout_s)
    data = place.folder / f"{_slug(case)}.jsonl"
    write_full_rows(data, case.row_tokens, 4 * case.num_rows)
    arguments = [
        case.profile,
        *case.options(),
        f"--data={data}",
        "--set=train.log_every_steps=1",
        "--set=train.max_steps=1000000",
        "--force",  # it is stopped early and so never writes files of the model's size
    ]
    num_steps = steps.warm + steps.measured
    left_s = timeout_s - (time.monotonic() - begun)
    with GpuMemory(place.gpu) as memory:
        done = follow(_slug(case), arguments, place, timeout_s=left_s, stop_after=num_steps)
    return measured(case, done, steps.warm) | {"nvml_peak_bytes": memory.peak_bytes} | planned


def _slug(case: Case) -> str:
    return case.name.replace(" ", "-").lower()


def _plan(case: Case, place: Place, timeout_s: float) -> Figures:
    """Return the plan's figures. Raises SkippedError if it does not fit, or there is no plan."""
    try:
        done = subprocess.run(
            airlock("plan", case.profile, *case.options(), "--json"),
            env=place.environment(_slug(case)),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=place.folder,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"no plan after {timeout_s:.0f} s") from error
    if done.returncode not in (ExitCode.DONE, ExitCode.DOES_NOT_FIT):
        said = done.stderr.strip() or done.stdout.strip()
        raise (SkippedError if done.returncode in _NO_PLAN else FailedError)(said[-500:])
    found = json.loads(done.stdout.splitlines()[-1])
    rank = found["rank"]
    if why := _why_not(found):
        raise SkippedError(why)
    return {
        "plan_peak_bytes": rank["peak_bytes"],
        "plan_most_bytes": rank.get("most_bytes"),  # with the driver's share; none on CPU
        "num_parameters": rank["num_parameters"],
        "num_trainable": rank["num_trainable"],
    }


def _why_not(plan: Figures) -> str | None:
    """Return the reason that it cannot be trained, or None.

    With a GPU the host is ignored: it would lack only the room to export the model.
    """
    rank, gpu, host = plan["rank"], plan["gpu"], plan["host"]
    if gpu is not None and gpu["verdict"] == Fit.DOES_NOT_FIT:
        least, has = size_text(rank["least_bytes"]), size_text(gpu["memory_bytes"])
        return f"the plan: a rank needs {least} at least, and {gpu['name']} has {has}"
    if gpu is None and host["verdict"] == Fit.DOES_NOT_FIT:
        least, has = size_text(host["least_bytes"]), size_text(host["available_bytes"])
        return f"the plan: the host needs {least} at least, and {has} are available"
    return None


def measured(case: Case, done: Done, num_warm: int) -> Figures:
    """Return the figures of the steps after the first `num_warm`; none raise FailedError."""
    metrics = done.of("metric", "train")
    ends = [one["mono"] for one in metrics]
    counted = metrics[num_warm:]
    if num_warm < 1 or not counted:
        raise FailedError(f"{len(metrics)} steps were trained, no more")
    tokens_per_s = len(counted) * case.num_rows * case.row_tokens / (ends[-1] - ends[num_warm - 1])
    last = counted[-1]  # its MFU and its speed are of the same seconds
    mfu = None if last["mfu"] is None else last["mfu"] * tokens_per_s / last["tokens_per_s"]
    (result,) = done.of("mark", "train.result")
    return {
        "tokens_per_s": round(tokens_per_s, 1),
        "mfu": None if mfu is None else round(mfu, 4),
        "gpu_peak_bytes": result["gpu_peak_bytes"],
        "first_step_s": round(ends[0] - done.started, 1),  # since the exec of the command
        "num_steps": len(counted),
        "row_tokens": case.row_tokens,
        "rows_per_step": case.num_rows,
        "last_loss": last["loss"],
        **{f"time_{part}_s": _median(counted, f"time_{part}_s") for part in _PARTS},
    }


def _median(metrics: list[Any], key: str) -> float | None:
    values = [one[key] for one in metrics if one[key] is not None]
    return statistics.median(values) if values else None
