"""The figures of runs in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.runs.machine_samples import gpu_stats, memory_stats
from monitor.runs.run_list import Runs
from monitor.runs.run_rows import STATES, RunRow
from rundir.paths import RunDir

MEDIA_TYPE = "text/plain; version=0.0.4"
_MOST_RUNS = 50  # the newest: each is a set of time series in Prometheus
# Field of a row, what it is called there, what it is.
_OF_ROW = (
    ("step", "airlock_run_step", "Steps trained"),
    ("total_steps", "airlock_run_total_steps", "Steps in all"),
    ("loss", "airlock_run_loss", "Mean loss per label token"),
    ("lr", "airlock_run_learning_rate", "Learning rate"),
    ("tokens_per_s", "airlock_run_tokens_per_second", "Input tokens of all ranks per second"),
    ("mfu", "airlock_run_mfu_ratio", "Model FLOPs utilisation, 0 to 1"),
    ("eta_s", "airlock_run_eta_seconds", "Seconds left"),
    ("attempt", "airlock_run_restarts", "Restarts so far"),
    ("num_ranks", "airlock_run_ranks", "Ranks"),
    ("updated_t", "airlock_run_updated_seconds", "When it has last told of itself, Unix seconds"),
)
_OF_GPU = (
    ("used_bytes", "airlock_gpu_used_bytes", "Memory in use on a GPU of the run"),
    ("total_bytes", "airlock_gpu_total_bytes", "Memory that the GPU has"),
    ("utilization_percent", "airlock_gpu_utilization_percent", "Share of time a kernel ran"),
    ("temperature_c", "airlock_gpu_temperature_celsius", "Temperature of its chip"),
    ("power_w", "airlock_gpu_power_watts", "What it draws"),
)
_OF_HOST = (
    ("pss_bytes", "airlock_host_run_bytes", "Memory of the run's processes, proportional"),
    ("available_bytes", "airlock_host_available_bytes", "MemAvailable of the host"),
)


def text_of(runs: Runs) -> str:
    """Return the newest runs, live or not, with what live ones take of their machine."""
    rows, total = runs.page(limit=_MOST_RUNS)
    lines = list(_gauge("airlock_runs", "Run folders", [({}, total)]))
    lines += _gauge(
        "airlock_run_state",
        "1 for the state that a run is in",
        [
            ({**_labels(row), "state": state}, int(row.state == state))
            for row in rows
            for state in STATES
        ],
    )
    for field, name, meaning in _OF_ROW:
        samples = [(_labels(row), getattr(row, field)) for row in rows]
        lines += _gauge(name, meaning, samples)
    live = [row for row in rows if row.state in ("running", "paused")]
    lines += _of_machine(runs, live)
    return "\n".join(lines) + "\n"


def _of_machine(runs: Runs, live: list[RunRow]) -> Iterator[str]:
    hosts, gpus = [], []
    for row in live:
        run = RunDir(runs.folder / row.id)
        hosts.append((_labels(row), memory_stats(run)["host"] or {}))
        ids = _labels(row)
        gpus += [({**ids, "gpu": str(gpu["index"])}, gpu) for gpu in gpu_stats(run)["gpus"]]
    for field, name, meaning in _OF_HOST:
        yield from _gauge(name, meaning, [(ids, host.get(field)) for ids, host in hosts])
    for field, name, meaning in _OF_GPU:
        yield from _gauge(name, meaning, [(ids, gpu.get(field)) for ids, gpu in gpus])


def _labels(row: RunRow) -> dict[str, str]:
    return {"run": row.id, "profile": row.profile}


def _gauge(name: str, meaning: str, samples: list[tuple[dict[str, str], Any]]) -> Iterator[str]:
    """Yield a metric with its samples; those that are not known are left out."""
    lines = [
        f"{name}{_braces(labels)} {value}"
        for labels, given in samples
        if (value := _value(given)) is not None
    ]
    if lines:
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} gauge"
        yield from lines


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def _value(given: Any) -> str | None:
    """Return a number as Prometheus reads it; NaN and infinities stand as words in status.json."""
    words = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
    if isinstance(given, str):
        return words.get(given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return words.get(str(given)) or repr(given)
    return None
