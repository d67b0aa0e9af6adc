"""Training a real shape on one GPU: speed, MFU and memory, compared with the plan's prediction."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpus.data import model_folder, write_mixed_rows
from benchmarks.gpus.figures import measured, nvml_peaks
from benchmarks.gpus.memory import GpuMemory
from benchmarks.gpus.run import (
    Done,
    Ending,
    FailedError,
    Figures,
    OutOfTimeError,
    Place,
    SkippedError,
    airlock,
    follow,
)
from benchmarks.trainings.training import write_full_rows
from launch.config.profiles import load_profile
from launch.plan.fit import Fit
from rundir.errors import ExitCode
from rundir.units import size_text

_NO_PLAN = (ExitCode.USAGE, ExitCode.PREFLIGHT)  # as for a method that this version does not have
_CPU_ROW_TOKENS = 64
# Weights in bfloat16, and two states of AdamW in float32 with a master copy of the weights.
_CHECKPOINT_BYTES_PER_WEIGHT = 14
_LEFT_FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile with random weights, on one rank.

    Its rows are full, one sample in each, or `mixed`: samples of many lengths, packed.
    `architecture` replaces the profile's. On CPU both are those of `tiny`, and rows are short.
    """

    name: str
    profile: str
    method: str
    row_tokens: int = 4096
    num_rows: int = 2  # samples per step; a full row is a micro-batch
    rows: Literal["full", "mixed"] = "full"
    load: str = "random"
    architecture: Mapping[str, Any] | None = None
    settings: tuple[str, ...] = ()

    def on(self, place: Place) -> Case:
        """Return the case as it is run in `place`, with the settings that were asked for."""
        if place.device == "cuda":
            return replace(self, settings=(*self.settings, *place.settings))
        return replace(
            self,
            profile="tiny",
            row_tokens=min(self.row_tokens, _CPU_ROW_TOKENS),
            architecture=self.architecture and load_profile("tiny")["architecture"],
            # Two threads would wait for each other.
            settings=("launch.threads_per_rank=1", *self.settings, *place.settings),
        )

    def options(self) -> list[str]:
        """Return the options that plan and run have in common."""
        settings = [
            f"train.method={self.method}",
            f"data.max_seq_length={self.row_tokens}",
            f"train.global_batch_size={self.num_rows}",
            "train.micro_batch_size=1",
            f"launch.load={self.load}",
            "data.eval_path=",
            *self.settings,
        ]
        return ["--num-gpus=1", *(f"--set={one}" for one in settings)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The numbers of warm-up steps and of measured steps."""

    warm: int
    measured: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.warm + self.measured


def train(case: Case, place: Place, steps: Steps, timeout_s: float) -> Iterator[Figures]:
    """Plan, then train and stop; yield the plan's figures, then those measured.

    Raises SkippedError if it does not fit or is not supported, FailedError when it fails, and
    OutOfTimeError once what was measured until then is yielded.
    """
    begun = time.monotonic()
    if case.method == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        raise SkippedError("bitsandbytes is not installed")
    case = with_model(case.on(place), place)
    planned = plan(case, place, timeout_s)
    yield planned
    ending, why = _ending(case, place, planned)
    if why:
        yield {"killed_because": why}
    left_s = timeout_s - (time.monotonic() - begun)
    with GpuMemory(place.gpu) as memory:
        try:
            done = run_steps(case, place, steps.total, left_s, ending=ending)
        except OutOfTimeError as error:
            if len(error.done.losses()) > steps.warm:
                yield measured(case, error.done, steps.warm)
            raise
    yield measured(case, done, steps.warm) | nvml_peaks(memory, done)


def run_steps(
    case: Case, place: Place, num_steps: int, timeout_s: float, *, ending: Ending = "stop"
) -> Done:
    """Train so many steps. Raises SkippedError for what the program refuses, FailedError."""
    arguments = [
        case.profile,
        *case.options(),
        f"--data={write_rows(case, place)}",
        "--set=train.log_every_steps=1",
        "--set=train.max_steps=1000000",
        "--force",  # it is stopped early and so never writes files of the model's size
    ]
    try:
        return follow(
            case.name, arguments, place, timeout_s=timeout_s, stop_after=num_steps, ending=ending
        )
    except FailedError as error:
        if error.exit_code in _NO_PLAN:
            raise SkippedError(str(error)) from error
        raise


def with_model(case: Case, place: Place) -> Case:
    """Return `case` with a folder for its own architecture, if it has one."""
    if case.architecture is None:
        return case
    folder = place.folder / f"model-of-{case.name}"
    model_folder(folder, case.architecture)
    return replace(case, settings=(f"model.path={folder}", *case.settings))


def write_rows(case: Case, place: Place) -> Path:
    """Write the case's training data, enough for several epochs of an order of their own."""
    data = place.folder / f"{case.rows}-{case.row_tokens}-{case.num_rows}.jsonl"
    if case.rows == "mixed":
        write_mixed_rows(data, case.row_tokens, 4 * case.num_rows)
    else:
        write_full_rows(data, case.row_tokens, 4 * case.num_rows)
    return data


def plan(case: Case, place: Place, timeout_s: float) -> Figures:
    """Return the plan's figures. Raises SkippedError if it does not fit, or there is no plan."""
    try:
        done = subprocess.run(
            airlock("plan", case.profile, *case.options(), "--json"),
            env=place.environment(case.name),
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
        # Of full rows: the least that shorter samples take.
        "roofline_tokens_per_s": (found["roofline"] or {}).get("tokens_per_s"),
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


def _ending(case: Case, place: Place, planned: Figures) -> tuple[Ending, str]:
    """Return how the run is ended: a stop saves a checkpoint, for which a disk may be too small."""
    if case.method != "full":
        return "stop", ""
    needed = planned["num_parameters"] * _CHECKPOINT_BYTES_PER_WEIGHT + _LEFT_FREE_BYTES
    free = shutil.disk_usage(place.folder).free
    if free >= needed:
        return "stop", ""
    text = f"a checkpoint may take {size_text(needed)}, and {size_text(free)} of the disk are free"
    return "kill", f"{text}: so the allocator's own peak is not known"
