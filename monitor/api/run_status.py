"""The status of a run for its page: its row, its ranks with their starts, its plan, its alarms."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.event_pages import last_events, masked
from monitor.runs.inside import json_inside
from monitor.runs.machine_samples import gpu_stats
from monitor.runs.rank_starts import timeline
from monitor.runs.run_config import mask_for
from monitor.runs.run_rows import rank_rows, read_status, row_of
from rundir.paths import RunDir

_MOST_RANKS = 1024
_MOST_ALARMS = 50
_ALARMS = (
    "loss.bad",
    "hang",
    "hang.over",
    "stall",
    "memory.low",
    "memory.guard",
    "memory.oom_kill",
    "evolution.missing",
    "gpu.silent",
    "restart",
)


def status_of(run: RunDir) -> dict[str, Any]:
    """Return what GET /api/runs/R/status answers."""
    status = read_status(run)
    row = row_of(run, status)
    plan: Any = None
    with suppress(NotFoundError):
        plan = json_inside(run, "plan.json")
    # The ranks have the GPUs in order.
    limits = dict(enumerate(gpu.get("total_bytes") for gpu in gpu_stats(run)["gpus"]))
    ranks = []
    for rank_row in rank_rows(status)[:_MOST_RANKS]:
        rank = rank_row.get("rank")
        number = rank if type(rank) is int and rank >= 0 else -1
        starts = timeline(run, number, row.attempt) if number >= 0 else []
        ranks.append({**rank_row, "timeline": starts, "limit_bytes": limits.get(number)})
    return {**asdict(row), "ranks": ranks, "plan": plan, "alarms": _alarms(run)}


def _alarms(run: RunDir) -> list[dict[str, Any]]:
    """Return what went wrong, or was about to, the oldest first: near the ends of the events."""
    mask = mask_for(run)
    alarms = [
        masked(event, mask)
        for writer in ("launch", "agent", "rank0")
        for event in last_events(run, writer)
        if event["name"] in _ALARMS and event["kind"] in ("mark", "error")
    ]
    alarms.sort(key=lambda event: event["t"] if isinstance(event.get("t"), int | float) else 0)
    return alarms[-_MOST_ALARMS:]
