"""What a run takes of its machine, as last measured: GPUs, host memory, memory of each rank."""

from __future__ import annotations

import shutil
import time
from typing import Any

from monitor.runs.event_pages import last_events
from monitor.runs.run_rows import rank_rows, read_status
from rundir.events import COMMON, Event
from rundir.paths import RunDir

_STALE_S = 30.0  # an older sample tells nothing of now
_NO_FIELDS = COMMON - {"t"}  # when it was measured is told
_OF_RANK = ("rank", "phase", "rss_bytes", "pss_anon_bytes", "gpu_used_bytes")


def gpu_stats(run: RunDir) -> dict[str, Any]:
    """Return the last sample of each GPU of the run; "is_stale" if none is recent."""
    latest: dict[int, Event] = {}
    for event in last_events(run, "launch"):
        if (event["kind"], event["name"]) == ("metric", "gpu") and type(event.get("index")) is int:
            latest[event["index"]] = event
    gpus = [_fields(event) for _, event in sorted(latest.items())]
    return {"run": run.run_id, "gpus": gpus, "is_stale": _is_stale(list(latest.values()))}


def memory_stats(run: RunDir) -> dict[str, Any]:
    """Return the last sample of the host's memory, and what each rank has told of its own."""
    samples = [
        event
        for event in last_events(run, "launch")
        if (event["kind"], event["name"]) == ("metric", "host")
    ]
    rows = rank_rows(read_status(run))
    return {
        "run": run.run_id,
        "host": _fields(samples[-1]) if samples else None,
        "ranks": [{key: row.get(key) for key in _OF_RANK} for row in rows],
        "disk": _disk(run),
        "is_stale": _is_stale(samples[-1:]),
    }


def _disk(run: RunDir) -> dict[str, int] | None:
    """Return the room of the disk that the run is written to."""
    try:
        usage = shutil.disk_usage(run.path)
    except OSError:
        return None
    return {"free_bytes": usage.free, "total_bytes": usage.total}


def _fields(event: Event) -> Event:
    return {key: value for key, value in event.items() if key not in _NO_FIELDS}


def _is_stale(events: list[Event]) -> bool:
    times = [event["t"] for event in events if isinstance(event.get("t"), int | float)]
    return not times or time.time() - max(times) > _STALE_S
