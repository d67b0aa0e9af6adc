"""A job: one dropped file or folder on its way; its record, and the folder that it lies in."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inbox.layout import PRIORITIES, STATES, Layout, entries
from rundir.atomic import sync, write_text

_ID = re.compile(r"(\d{6,})-.*")
_LONGEST_SLUG = 24  # a run is named JOB.ATTEMPT, of at most 40 characters


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One training of a job: written before it is started, and again once it has ended."""

    number: int
    started_t: float  # unix seconds
    resumed: str = ""  # the run folder that it goes on from
    resumed_step: int = 0
    process: dict[str, Any] | None = None  # pid, start_ticks, boot_id (recorded_process.py)
    asked: str = ""  # stop or skip, written before its process is told
    ended_t: float | None = None
    exit_code: int | None = None
    reason: str = ""
    counts: bool = True  # towards the limit; not once it was stopped on request


@dataclass(slots=True, kw_only=True)
class InboxJob:
    """What job.json holds. `folder` is where the job lies now."""

    id: str
    name: str  # of what was dropped
    priority: str
    dropped_t: float  # unix seconds; the order is that of the ids, whatever the clock does
    content_hash: str = ""
    key: str = ""  # content and the way of training: a completed one is not trained again
    options: list[str] = field(default_factory=list)  # for ./start.sh, as the first attempt had
    profile: str = ""
    train_again: bool = False  # even if the same content was trained in the same way
    attempts: list[Attempt] = field(default_factory=list)
    retry_after_s: float = 0.0  # wait before the next attempt, from when it was put back
    folder: Path = Path()

    @property
    def data(self) -> Path:
        """What was dropped."""
        return self.folder / "data" / self.name

    @property
    def num_failures(self) -> int:
        """The attempts that count towards the limit."""
        return sum(attempt.counts for attempt in self.attempts)

    @property
    def order(self) -> tuple[int, str]:
        """What sorts jobs: priority first, then as they came."""
        return PRIORITIES.index(self.priority), self.id

    def write(self) -> None:
        """Replace job.json, on the disk before this returns. Raises OSError."""
        table = asdict(self)
        del table["folder"]
        write_text(self.folder / "job.json", json.dumps(table, indent=1) + "\n")
        sync(self.folder)

    def move(self, to: Path) -> None:
        """Move the job to another state's folder, in one step. Raises OSError."""
        target = to / self.id
        if target.exists():
            raise FileExistsError(f"{target} is there already; nothing is overwritten")
        before = self.folder.parent
        self.folder.rename(target)
        self.folder = target
        sync(to)
        sync(before)


def read_job(folder: Path, job_id: str = "") -> InboxJob | None:
    """Return the job in a folder; None if its record is missing or damaged.

    The folder is called like the job, or `job_id` says what that is called.
    """
    try:
        table = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        attempts = [Attempt(**attempt) for attempt in table.pop("attempts")]
        job = InboxJob(**table, attempts=attempts, folder=folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return job if job.priority in PRIORITIES and job.id == (job_id or folder.name) else None


def folders_in(state: Path) -> list[Path]:
    """Return the folders of a state that look like jobs, in the order in which they came."""
    return [Path(entry.path) for entry in entries(state) if _ID.fullmatch(entry.name)]


def jobs_in(state: Path) -> list[InboxJob]:
    """Return the jobs in a state's folder, in the order in which they are trained."""
    jobs = (read_job(folder) for folder in folders_in(state))
    return sorted((job for job in jobs if job is not None), key=lambda job: job.order)


def damaged_in(state: Path) -> list[str]:
    """Return the names of folders that look like jobs, and have no record that can be read."""
    return [folder.name for folder in folders_in(state) if read_job(folder) is None]


def find_job(layout: Layout, word: str) -> tuple[str, InboxJob] | None:
    """Return (state, job) for an id, its number, or the name of what was dropped if one has it."""
    number = word.lstrip("0")  # 12, or 000012 as ids show it
    matches = [
        (state, job)
        for state, job in every_job(layout)
        if job.id == word or job.id.partition("-")[0].lstrip("0") == number
    ]
    matches = matches or [(state, job) for state, job in every_job(layout) if job.name == word]
    return matches[0] if len(matches) == 1 else None


def every_job(layout: Layout) -> Iterator[tuple[str, InboxJob]]:
    """Yield (state, job) for each job there is."""
    for state in ("processing", "queue", "done", "failed"):
        for job in jobs_in(layout.path / state):
            yield state, job


def new_job(layout: Layout, name: str, priority: str) -> InboxJob:
    """Return a job with an id that no other has: number, name in plain letters, four hex digits.

    The number gives the order; the digits keep ids apart even if folders were taken away.
    """
    slug = re.sub(r"[^A-Za-z0-9]+", "-", Path(name).stem)[:_LONGEST_SLUG].strip("-").lower()
    job_id = f"{_last_number(layout) + 1:06d}-{slug or 'data'}-{secrets.token_hex(2)}"
    return InboxJob(id=job_id, name=name, priority=priority, dropped_t=time.time())


def _last_number(layout: Layout) -> int:
    names = (
        name.lstrip(".")
        for state in STATES
        for name in os.listdir(layout.path / state)  # noqa: PTH208
    )
    return max((int(match[1]) for name in names if (match := _ID.fullmatch(name))), default=0)
