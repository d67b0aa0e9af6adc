"""The files of an inbox: what was dropped, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from inbox.daemon_state import answer
from inbox.job_verdict import verdict_of
from inbox.jobs import InboxJob, folders_in, jobs_in, read_job
from inbox.layout import Layout
from monitor.api.control_requests import inbox_layout

_OF_ATTEMPT = ("number", "started_t", "ended_t", "exit_code", "reason")


def inbox_files(folder: Path | None, *, limit: int, offset: int) -> dict[str, Any]:
    """Return what the inbox does, and its files: the one that trains, those that wait, the rest."""
    layout = inbox_layout(folder)
    status = answer(layout)
    shown = islice(_folders(layout), offset, offset + limit)
    jobs = ((state, read_job(folder)) for state, folder in shown)
    rows = [_row(state, job) for state, job in jobs if job is not None]
    return {
        "inbox": str(layout.path),
        "status": status,
        "files": rows,
        "total": sum(status["num"].values()),
    }


def _folders(layout: Layout) -> Iterator[tuple[str, Path]]:
    """Yield (state, folder): in the order of training, and what is over with the newest first.

    Only the names of what is over are read, as there may be thousands.
    """
    for state in ("processing", "queue"):
        yield from ((state, job.folder) for job in jobs_in(layout.path / state))
    for state in ("failed", "done"):
        yield from ((state, folder) for folder in reversed(folders_in(layout.path / state)))


def _row(state: str, job: InboxJob) -> dict[str, Any]:
    last = job.attempts[-1] if job.attempts else None
    verdict = verdict_of(job)
    return {
        "id": job.id,
        "name": job.name,
        "state": state,
        "priority": job.priority,
        "dropped_t": job.dropped_t,
        "attempts": [
            {key: getattr(attempt, key) for key in _OF_ATTEMPT} for attempt in job.attempts
        ],
        "result": verdict.get("result"),
        "reason": verdict.get("reason") or (last.reason if last else ""),
    }
