"""A job whose training has ended while the disk was full: what was decided stands."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from inbox import job_verdict, jobs
from inbox.claim import add
from inbox.inbox_settings import InboxSettings
from inbox.job_verdict import JobVerdict
from inbox.jobs import InboxJob, every_job, jobs_in
from inbox.layout import Layout
from inbox.trainer import JobTrainer
from rundir.atomic import write_text
from tests.inbox.serving import Served


class FullDisk:
    """A disk that is full once: after `writes_before` writes that went well."""

    def __init__(self, writes_before: int) -> None:
        self.writes_before = writes_before

    def write_text(self, path: Path, text: str) -> None:
        self.writes_before -= 1
        if self.writes_before == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_text(path, text)


def trainer_of(served: Served, **settings: Any) -> JobTrainer:
    """Return a trainer, not yet with a job, for trainings by the stand-in."""
    kept = InboxSettings(profile="tiny", clone=served.clone, environ=served.environ, **settings)
    return JobTrainer(served.layout, kept, lambda _: None, lambda: False)


def begun(served: Served, trainer: JobTrainer, **plan: Any) -> InboxJob:
    """Return a job whose first attempt has begun."""
    file = served.clone / "a.jsonl"
    file.write_text(json.dumps({"steps": 2} | plan))
    job = add(served.layout, file, "normal")
    trainer.begin(job)
    return job


def train_on(trainer: JobTrainer, layout: Layout) -> None:
    """Do what the daemon does with what is in processing, until it is over. Raises OSError."""
    while left := jobs_in(layout.processing):
        if trainer.job is None:
            trainer.take_over(left[0])
        trainer.end_if_over()
        if trainer.job is not None:
            trainer.begin(None)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("plan", "settings", "result"),
    [
        ({}, {}, "done"),
        ({"code": 5}, {}, "failed"),
        ({"code": 10}, {"attempts": 1}, "failed"),
    ],
)
@pytest.mark.parametrize("writes_before", [0, 1, 2])
def test_a_full_disk_at_the_end_of_a_job_neither_changes_its_verdict_nor_trains_it_again(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    writes_before: int,
    plan: dict[str, Any],
    settings: dict[str, Any],
    result: str,
) -> None:
    trainer = trainer_of(served, **settings)
    begun(served, trainer, **plan)
    disk = FullDisk(writes_before)
    for module in (job_verdict, jobs):
        monkeypatch.setattr(module, "write_text", disk.write_text)
    with pytest.raises(OSError, match="No space left"):
        train_on(trainer, served.layout)
    train_on(trainer, served.layout)
    [(state, job)] = every_job(served.layout)
    assert (state, len(job.attempts)) == (result, 1)
    assert job.attempts[0].ended_t is not None
    assert served.verdict("a.jsonl")["result"] == result


def test_a_failure_that_could_not_be_put_back_into_the_queue_waits_all_the_same(
    served: Served,
) -> None:
    trainer = trainer_of(served, backoff_s=1000.0)
    job = begun(served, trainer, code=10)
    obstacle = served.layout.queue / job.id
    obstacle.mkdir()
    with pytest.raises(FileExistsError):
        train_on(trainer, served.layout)
    obstacle.rmdir()
    train_on(trainer, served.layout)
    [(state, job_there)] = every_job(served.layout)
    assert (state, len(job_there.attempts), job_there.retry_after_s) == ("queue", 1, 1000.0)


def test_a_verdict_names_the_data_where_they_lie_from_then_on(served: Served) -> None:
    file = served.clone / "a.jsonl"
    file.write_text("{}")
    job = add(served.layout, file, "normal")
    job.move(served.layout.processing)
    before = job.data
    fix = f"./start.sh --data {before}"
    verdict = JobVerdict(result="failed", reason=f"{before}:2: no row", fix=fix)
    job_verdict.finish(job, verdict, served.layout)
    verdict_file = job_verdict.verdict_of(job)
    assert job.data == served.layout.failed / job.id / "data" / job.name
    assert job.data.is_file()
    assert (verdict_file["reason"], verdict_file["fix"]) == (
        f"{job.data}:2: no row",
        f"./start.sh --data {job.data}",
    )
    assert str(served.layout.processing) not in (job.folder / "verdict.txt").read_text()
