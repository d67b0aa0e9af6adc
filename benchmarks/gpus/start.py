"""A warm start beside cold ones, from real safetensors: seconds of each phase, and every loss."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gpus.files import folder_of, write_files
from benchmarks.gpus.fork import check_start, differences
from benchmarks.gpus.run import Done, Figures, Place
from benchmarks.gpus.training import Case, run_steps

_RUNS = {"cold": "cold", "warm": "warm", "cold_again": "cold"}
NUM_STEPS = 6


def from_files(case: Case, place: Place) -> Case:
    """Return the case on the files that benchmarks.gpus.files has written."""
    settings = (f"model.path={folder_of(place)}", *case.on(place).settings)
    return replace(case.on(place), load="auto", settings=settings)


def starts(case: Case, place: Place, timeout_s: float) -> Iterator[Figures]:
    """Start cold, warm, and cold again; yield the seconds of each, then how losses differ.

    The second cold start tells what differs whenever the same is done twice. Raises SkippedError,
    FailedError.
    """
    begun = time.monotonic()
    yield from write_files(place, timeout_s)
    case, runs = from_files(case, place), dict[str, Done]()
    for name, start in _RUNS.items():
        this = replace(
            case,
            name=f"{case.name}-{name}",
            settings=(*case.settings, f"launch.start={start}", "model.dtype=bfloat16"),
        )
        left_s = timeout_s - (time.monotonic() - begun)
        runs[name] = run_steps(this, place, NUM_STEPS, left_s)
        check_start(runs[name], start)
        yield {f"{name}_first_step_s": runs[name].first_step_s} | _phases(name, runs[name])
    again = differences(runs["cold_again"], runs["cold"])
    yield {f"cold_again_{key}": value for key, value in again.items()}
    yield {
        **differences(runs["warm"], runs["cold"]),
        "zygote_touched_cuda": runs["warm"].of("mark", "zygote.ready")[-1]["cuda_touched"],
    }


def _phases(name: str, done: Done) -> Figures:
    """Return the seconds of every span that ended, summed by its name."""
    begun: dict[tuple[int, str], float] = {}
    seconds: dict[str, float] = defaultdict(float)
    for one in done.events:
        key = (one["pid"], one["name"])
        if one["kind"] == "start":
            begun[key] = one["mono"]
        elif one["kind"] == "end" and key in begun:
            seconds[one["name"]] += one["mono"] - begun.pop(key)
    return {
        f"{name}_{what.replace('.', '_')}_s": round(took, 2)
        for what, took in seconds.items()
        if what not in ("spawn", "checkpoint")
    }
