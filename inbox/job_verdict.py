"""The end of a job: its verdict, written before the job's folder moves to where it stays."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inbox.jobs import InboxJob, jobs_in
from inbox.layout import Layout
from rundir.atomic import write_text
from rundir.files.reading import json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """What became of a job. `result`: done, duplicate, failed or skipped."""

    result: str
    reason: str
    run: str = ""  # folder
    of_job: str = ""  # of a duplicate: the job that was trained
    is_current: bool = False
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    fix: str = ""  # what the doctor says to do


def finish(job: InboxJob, verdict: JobVerdict, layout: Layout) -> None:
    """Write the verdict, then move the job: there with its verdict, or not there. Raises OSError.

    The verdict decides: until it is there, a killed daemon leaves an attempt whose end is to be
    judged; once it is, `finish_again` moves the job.
    """
    here, there = str(job.folder), str(_place(verdict.result, layout) / job.id)
    table = asdict(verdict) | {
        "job": job.id,
        "name": job.name,
        "reason": verdict.reason.replace(here, there),  # a path is of where it will lie
        "ended_t": time.time(),
        "content_hash": job.content_hash,
        "key": job.key,
        "attempts": job.num_failures,
        "fix": verdict.fix.replace(here, there),
    }
    write_text(job.folder / "verdict.txt", _text(table, layout))
    write_text(job.folder / "verdict.json", json.dumps(table, indent=1) + "\n")
    _put_away(job, table, layout)


def finish_again(job: InboxJob, layout: Layout) -> bool:
    """Move a job that has its verdict already; return False if it has none. Raises OSError."""
    verdict = verdict_of(job)
    if verdict.get("result") not in ("done", "duplicate", "failed", "skipped"):
        return False
    _put_away(job, verdict, layout)
    return True


def _put_away(job: InboxJob, verdict: dict[str, Any], layout: Layout) -> None:
    """Move a job to where its verdict says that it stays; its last attempt ends with it."""
    if job.attempts and job.attempts[-1].ended_t is None:
        job.attempts[-1].ended_t = verdict.get("ended_t")
        job.attempts[-1].reason = verdict.get("reason", "")
        job.write()
    job.move(_place(verdict["result"], layout))


def _place(result: str, layout: Layout) -> Path:
    """Return the folder that a job with this result stays in."""
    return layout.done if result in ("done", "duplicate") else layout.failed


def verdict_of(job: InboxJob) -> dict[str, Any]:
    """Return the verdict of a job; {} if it has none."""
    return json_object(job.folder / "verdict.json")


def put_verdict_aside(job: InboxJob) -> None:
    """Keep the verdict of a job that is to be tried again under another name. Raises OSError."""
    number = sum(1 for _ in job.folder.glob("verdict.*.json")) + 1
    for kind in ("json", "txt"):
        path = job.folder / f"verdict.{kind}"
        if path.exists():
            path.rename(job.folder / f"verdict.{number}.{kind}")


def completed(layout: Layout) -> dict[str, str]:
    """Return the job that was trained, by the key of its content and way of training."""
    return {
        job.key: job.id
        for job in jobs_in(layout.done)
        if job.key and verdict_of(job).get("result") == "done"
    }


def _text(table: dict[str, Any], layout: Layout) -> str:
    """Return a verdict for people."""
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(table["ended_t"]))
    lines = [f"{table['name']}: {table['result']}", table["reason"], f"ended {ended}"]
    if table["run"]:
        lines.append(f"run: {table['run']}")
    for name, figures in table["scores"].items():
        lines.append(f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in figures.items()))
    if table["fix"]:
        lines.append(f"→ {table['fix']}")
    if table["result"] in ("failed", "skipped"):
        lines.append(f"→ ./airlock inbox {layout.quoted} retry {table['job']}")
    return "\n".join(lines) + "\n"
