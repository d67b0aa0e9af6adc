"""What the daemon does when it is asked to skip, retry or reorder a job."""

from __future__ import annotations

from inbox.ending import Verdict, finish, put_verdict_aside, verdict_of
from inbox.jobs import Job, find_job
from inbox.layout import PRIORITIES, Layout
from inbox.requests import Asked
from inbox.trainer import Trainer


def carry_out(asked: Asked, layout: Layout, trainer: Trainer) -> str:
    """Do what is asked of one job, and return it in words. Raises OSError."""
    present = trainer.job.id if trainer.job else ""
    if asked.request == "skip" and asked.job in ("", present):
        if not present:
            return "skip: nothing trains now"
        trainer.skip()
        return f"{present}: is to be skipped; it ends after its step"
    job = find_job(layout, asked.job)
    return f"there is no job {asked.job!r}" if job is None else _change_job(asked, *job, layout)


def _change_job(asked: Asked, state: str, job: Job, layout: Layout) -> str:
    """Do what is asked of a job that does not train."""
    is_duplicate = verdict_of(job).get("result") == "duplicate"
    if asked.request == "skip" and state == "queue":
        finish(job, Verdict(result="skipped", reason="skipped on request"), layout)
        return f"{job.id}: skipped"
    if asked.request == "retry" and (state == "failed" or is_duplicate):
        return _retry(job, layout, again=is_duplicate)
    if asked.request == "priority" and state == "queue" and asked.priority in PRIORITIES:
        job.priority = asked.priority
        job.write()
        return f"{job.id}: {asked.priority} priority"
    return f"{asked.request} {asked.priority}: nothing to do for {job.id}, which is in {state}/"


def _retry(job: Job, layout: Layout, *, again: bool) -> str:
    """Put a job that is over back into the queue, with all its attempts before it.

    `again`: although the same content was trained already.
    """
    for attempt in job.attempts:
        attempt.counts = False
    job.retry_after_s, job.train_again = 0.0, again or job.train_again
    job.write()
    put_verdict_aside(job)
    job.move(layout.queue)
    return f"{job.id}: is tried again"
