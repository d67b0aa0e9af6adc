"""The status of a run for its page: its row, its ranks with their starts, its plan, its alarms."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any

from monitor.http.api_errors import NotFoundError
from monitor.runs.event_pages import last_events, masked
from monitor.runs.inside import json_inside
from monitor.runs.masks import mask_for
from monitor.runs.rank_starts import timeline
from monitor.runs.run_rows import read_status, row_of
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
    limits = _limits(run)
    told = status.get("ranks")
    rows = [row_ for row_ in told if isinstance(row_, dict)] if isinstance(told, list) else []
    ranks = []
    for row_ in rows[:_MOST_RANKS]:
        rank = row_.get("rank")
        number = rank if type(rank) is int and rank >= 0 else -1
        ranks.append(
            {
                **row_,
                "timeline": timeline(run, number, row.attempt) if number >= 0 else [],
                "limit_bytes": limits.get(number),
            }
        )
    return {**asdict(row), "ranks": ranks, "plan": plan, "alarms": _alarms(run)}


def _limits(run: RunDir) -> dict[int, int]:
    """Return the memory of each rank's GPU, as last sampled; the ranks have them in order."""
    limits = {}
    for event in last_events(run, "launch"):
        total = event.get("total_bytes")
        if (event["kind"], event["name"]) == ("metric", "gpu") and type(total) is int:
            index = event.get("index")
            if type(index) is int:
                limits[index] = total
    return dict(enumerate(limits[index] for index in sorted(limits)))


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
