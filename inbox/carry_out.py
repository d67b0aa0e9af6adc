"""What the daemon does when it is asked to skip, retry or reorder a job."""

from __future__ import annotations

from inbox.job_verdict import JobVerdict, finish, put_verdict_aside, verdict_of
from inbox.jobs import InboxJob, find_job
from inbox.layout import PRIORITIES, Layout
from inbox.requests import InboxRequest
from inbox.trainer import JobTrainer


def carry_out(request: InboxRequest, layout: Layout, trainer: JobTrainer) -> str:
    """Do what is asked of one job, and return it in words. Raises OSError."""
    present = trainer.job.id if trainer.job else ""
    if request.kind == "skip" and request.job in ("", present):
        if not present:
            return "skip: nothing trains now"
        trainer.skip()
        return f"{present}: is to be skipped; it ends after its step"
    job = find_job(layout, request.job)
    return f"there is no job {request.job!r}" if job is None else _change(request, *job, layout)


def _change(request: InboxRequest, state: str, job: InboxJob, layout: Layout) -> str:
    """Do what is asked of a job that does not train."""
    is_duplicate = verdict_of(job).get("result") == "duplicate"
    if request.kind == "skip" and state == "queue":
        finish(job, JobVerdict(result="skipped", reason="skipped on request"), layout)
        return f"{job.id}: skipped"
    if request.kind == "retry" and (state == "failed" or is_duplicate):
        return _retry(job, layout, again=is_duplicate)
    if request.kind == "priority" and state == "queue" and request.priority in PRIORITIES:
        job.priority = request.priority
        job.write()
        return f"{job.id}: {request.priority} priority"
    return f"{request.kind} {request.priority}: nothing to do for {job.id}, which is in {state}/"


def _retry(job: InboxJob, layout: Layout, *, again: bool) -> str:
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
