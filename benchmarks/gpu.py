"""The measurements that need a GPU, on one NVIDIA GPU, without a network.

`python -m benchmarks.gpu [--quick] [--json]` trains Qwen2.5-14B and -32B in their real shapes, with
random weights, LoRA and QLoRA on rows of 4,096 tokens: tokens/s, MFU, and peak memory compared with
the plan's. Before that it measures how much address space CUDA reserves, and whether ranks forked
from a zygote train like those that start alone. What cannot be measured is listed with the reason;
a failure does not stop the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gpus.address import address_space
from benchmarks.gpus.fork import compare_starts
from benchmarks.gpus.run import FailedError, Place, SkippedError
from benchmarks.gpus.training import CASES, Figures, Steps, train
from benchmarks.report import Ratio, machine
from benchmarks.training import has_gpu
from launch.host.nvml import driver_state

_GIB = 1024**3
_QUICK = (Steps(warm=2, measured=3), 150.0, 540.0)  # seconds: at most per case, and in total
_FULL = (Steps(warm=3, measured=12), 600.0, 3600.0)
_LEAST_S = 20.0  # with less time left, no case is started
_OFF_AT_MOST = 0.05  # the plan's peak, as in benchmarks/plan.py for small models

Measure = Callable[[float], Figures]  # given the seconds that it may take


@dataclass(slots=True)
class Found:
    """The results of the cases: figures or a reason. A failed one is in `failed` only."""

    cases: dict[str, Figures] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def measures(place: Place, steps: Steps) -> dict[str, Measure]:
    """Return every case by name, in the order in which they are given time."""
    half = ("model.dtype=bfloat16", "train.method=lora")
    return {
        "addresses": partial(address_space, place, expandable=False),
        "addresses, expandable segments": partial(address_space, place, expandable=True),
        "warm fork, tiny, full": partial(compare_starts, place, name="full"),
        **{case.name: partial(train, case, place, steps) for case in CASES},
        "warm fork, tiny, LoRA in bfloat16": partial(
            compare_starts, place, name="lora", settings=half
        ),
    }


def measure_all(todo: Mapping[str, Measure], case_s: float, total_s: float) -> Found:
    """Measure the cases that there is time for."""
    found, begun = Found(), time.monotonic()
    for name, measure in todo.items():
        left_s = total_s - (time.monotonic() - begun)
        if left_s < _LEAST_S:
            found.skipped[name] = f"no time was left of {total_s:.0f} s"
            continue
        try:
            found.cases[name] = measure(min(case_s, left_s))
            _say(f"{name}: {json.dumps(found.cases[name])}")
        except SkippedError as why:
            found.skipped[name] = str(why)
            _say(f"{name}: skipped: {why}")
        except FailedError as why:
            found.failed[name] = str(why)
            _say(f"{name}: FAILED: {why}")
        # A driver, disk or library may fail in any way; that must not lose the other results.
        except Exception as error:  # noqa: BLE001
            found.failed[name] = f"{type(error).__name__}: {error}"
            _say(f"{name}: FAILED: {found.failed[name]}")
    return found


def claims(cases: Mapping[str, Figures]) -> dict[str, dict[str, float | bool]]:
    """Return the claims about those cases that have the figures for them."""
    made: dict[str, Ratio] = {}
    for name, one in cases.items():
        if one.get("gpu_peak_bytes"):
            off = abs(one["plan_peak_bytes"] / one["gpu_peak_bytes"] - 1)
            made[f"{name}: peak of the allocator, the plan's off by"] = Ratio([off], _OFF_AT_MOST)
        if one.get("nvml_peak_bytes") and one.get("plan_most_bytes"):
            share = one["nvml_peak_bytes"] / one["plan_most_bytes"]
            made[f"{name}: memory of the GPU / the plan's most"] = Ratio([share], 1.0)
        if "num_different" in one:
            made[f"{name}: losses that are not a cold start's"] = Ratio([one["num_different"]], 0)
            touched = float(one["zygote_touched_cuda"])
            made[f"{name}: zygotes that have touched CUDA"] = Ratio([touched], 0)
        if "limit_bytes" in one:
            share = one["allocated_bytes"] / one["limit_bytes"]
            made[f"{name}: VmPeak / the limit of a rank"] = Ratio([share], 1.0)
    return {name: ratio.as_dict() for name, ratio in made.items()}


def holds(found: Found, ratios: Mapping[str, Mapping[str, Any]], *, is_quick: bool) -> bool | str:
    """Return whether all claims hold; "incomplete" if they do but something was left out."""
    if found.failed or not all(ratio["holds"] for ratio in ratios.values()):
        return False
    return "incomplete" if found.skipped or is_quick else True


def as_json(found: Found, *, is_quick: bool) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    ratios = claims(found.cases)
    failed = {name: {"failed": why} for name, why in found.failed.items()}
    return {
        "machine": machine() | _gpu(),
        "cases": found.cases | failed,
        "ratios": ratios,
        "skipped": found.skipped,
        "holds": holds(found, ratios, is_quick=is_quick),
    }


def _gpu() -> dict[str, Any]:
    """Describe the device, in words and bytes; empty if there is none."""
    gpu, driver = Place(folder=Path()).gpu, driver_state()
    if gpu is None or driver is None:
        return {}
    return {"gpu": gpu.name, "gpu_memory_bytes": gpu.memory_bytes, "driver": driver.version}


def print_tables(result: Mapping[str, Any]) -> None:
    """Print trainings, addresses, forks, claims, and what is missing."""
    console = Console(width=120)
    trainings = Table(
        "training",
        "tokens/s",
        "MFU",
        "peak, GiB",
        "the plan's",
        "NVML",
        "most",
        "first step, s",
        title=result["machine"].get("gpu", "no GPU"),
    )
    others = Table("case", "figures")
    for name, one in result["cases"].items():
        if "tokens_per_s" in one:
            sizes = ("gpu_peak_bytes", "plan_peak_bytes", "nvml_peak_bytes", "plan_most_bytes")
            trainings.add_row(
                name,
                f"{one['tokens_per_s']:,.0f}",
                "" if one["mfu"] is None else f"{one['mfu']:.1%}",
                *(_gib(one[key]) for key in sizes),
                f"{one['first_step_s']:.0f}",
            )
        else:
            others.add_row(name, _in_words(one))
    claimed = Table("claim", "value", "limit", "")
    for name, ratio in result["ratios"].items():
        verdict = "holds" if ratio["holds"] else "FAILS"
        claimed.add_row(name, f"{ratio['median']:.3f}", f"{ratio['at_most']:g}", verdict)
    left_out = Table("skipped", "why")
    for name, why in result["skipped"].items():
        left_out.add_row(name, why)
    for table in (trainings, others, claimed, left_out):
        if table.row_count:
            console.print(table)


def _in_words(figures: Figures) -> str:
    if "failed" in figures:
        return f"FAILED: {figures['failed']}"
    return "\n".join(
        f"{key.removesuffix('_bytes')} {_gib(value)} GiB"
        if key.endswith("_bytes")
        else f"{key} {value}"
        for key, value in figures.items()
    )


def _gib(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / _GIB:,.2f}"


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)  # noqa: T201


def why_not_here() -> str | None:
    """Return the reason that nothing can be measured on this machine, or None."""
    if Place(folder=Path()).gpu is None:
        return "no NVIDIA GPU is visible here"
    return None if has_gpu() else "this torch cannot use the GPU that is here"


def main() -> None:
    """Measure, print the tables, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--quick", action="store_true", help="few steps, all within 9 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    steps, case_s, total_s = _QUICK if options.quick else _FULL
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        todo = measures(Place(folder=Path(folder)), steps)
        why = why_not_here()
        found = (
            Found(skipped=dict.fromkeys(todo, why)) if why else measure_all(todo, case_s, total_s)
        )
    result = as_json(found, is_quick=options.quick)
    print_tables(result)
    if options.json:
        print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
