"""The files of an inbox: what was dropped, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from inbox.ending import verdict_of
from inbox.jobs import Job, jobs_in
from inbox.layout import Layout
from inbox.state import answer
from monitor.api.controls import inbox_layout

_ORDER = ("processing", "queue", "failed", "done")


def inbox_files(folder: Path | None, *, limit: int, offset: int) -> dict[str, Any]:
    """Return what the inbox does, and its files: the one that trains, those that wait, the rest."""
    layout = inbox_layout(folder)
    status = answer(layout)
    rows = [_row(state, job) for state, job in islice(_jobs(layout), offset, offset + limit)]
    return {
        "inbox": str(layout.path),
        "status": status,
        "files": rows,
        "total": sum(status["num"].values()),
    }


def _jobs(layout: Layout) -> Iterator[tuple[str, Job]]:
    for state in _ORDER:
        jobs = jobs_in(layout.path / state)
        is_over = state in ("failed", "done")
        yield from ((state, job) for job in (reversed(jobs) if is_over else jobs))


def _row(state: str, job: Job) -> dict[str, Any]:
    last = job.attempts[-1] if job.attempts else None
    verdict = verdict_of(job)
    return {
        "id": job.id,
        "name": job.name,
        "state": state,
        "priority": job.priority,
        "dropped_t": job.dropped_t,
        "attempts": [
            {
                "number": one.number,
                "started_t": one.started_t,
                "ended_t": one.ended_t,
                "exit_code": one.exit_code,
                "reason": one.reason,
            }
            for one in job.attempts
        ],
        "result": verdict.get("result"),
        "reason": verdict.get("reason") or (last.reason if last else ""),
    }
