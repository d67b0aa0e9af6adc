"""Figures of a training from its events: speed and MFU after the first steps, memory, losses."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any, Protocol

from benchmarks.gpus.memory import GpuMemory
from benchmarks.gpus.run import Done, FailedError, Figures

_PARTS = ("data", "forward", "backward", "comm", "optimizer")


class Shape(Protocol):
    """What the figures need to know of a case (benchmarks/gpus/training.py)."""

    @property
    def rows(self) -> str: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def row_tokens(self) -> int: ...


def measured(case: Shape, done: Done, num_warm: int) -> Figures:
    """Return the figures of the steps after the first `num_warm`; none raise FailedError."""
    metrics = done.of("metric", "train")
    ends = [one["mono"] for one in metrics]
    counted = metrics[num_warm:]
    if num_warm < 1 or not counted:
        raise FailedError(f"{len(metrics)} steps were trained, no more")
    speed, mfu = _speed(case, counted, ends[num_warm - 1 :])
    results = done.of("mark", "train.result")  # none if it was killed
    # Both are of the same seconds, and of the whole loop.
    again = results[-1]["hfu"] / results[-1]["mfu"] if results and results[-1]["mfu"] else None
    return {
        "tokens_per_s": round(speed, 1),
        "mfu": None if mfu is None else round(mfu, 4),
        "hfu": None if mfu is None or again is None else round(mfu * again, 4),
        "gpu_peak_bytes": results[-1]["gpu_peak_bytes"] if results else None,
        "first_step_s": done.first_step_s,  # since the exec of the command
        "num_steps": len(counted),
        "row_tokens": case.row_tokens,
        "rows_per_step": case.num_rows,
        "last_loss": counted[-1]["loss"],
        **{f"time_{part}_s": _median(counted, f"time_{part}_s") for part in _PARTS},
    }


def _speed(case: Shape, counted: list[Any], ends: list[float]) -> tuple[float, float | None]:
    """Return (tokens per second, MFU) of the steps between these ends."""
    total_s = ends[-1] - ends[0]
    last = counted[-1]
    if case.rows == "full":
        tokens_per_s = len(counted) * case.num_rows * case.row_tokens / total_s
        if last["mfu"] is None:
            return tokens_per_s, None
        # Its MFU and its speed are of the same seconds.
        return tokens_per_s, last["mfu"] * tokens_per_s / last["tokens_per_s"]
    # Steps differ in length, and each has reported what it did in its own time.
    seconds = [end - begin for begin, end in pairwise(ends)]
    parts = list(zip(counted, seconds, strict=True))
    tokens_per_s = sum(one["tokens_per_s"] * took for one, took in parts) / total_s
    if last["mfu"] is None:
        return tokens_per_s, None
    return tokens_per_s, sum(one["mfu"] * took for one, took in parts) / total_s


def nvml_peaks(memory: GpuMemory, done: Done) -> Figures:
    """Return what NVML has seen: in the whole run, and once the model was loaded.

    Loading may take more for a moment, as when weights become four bits, which no plan is about.
    """
    loaded = [one["mono"] for one in done.of("mark", "mem.post_model")]
    return {
        "nvml_peak_bytes": memory.peak_bytes,
        "nvml_loaded_peak_bytes": memory.peak_since(max(loaded)) if loaded else None,
    }


def _median(metrics: list[Any], key: str) -> float | None:
    values = [one[key] for one in metrics if one[key] is not None]
    return statistics.median(values) if values else None
