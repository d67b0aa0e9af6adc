"""Preparation for our own trainer before any rank starts: requested tests, model and data.

A resumed run trains on the rows of the run before it, each once an epoch. The batch size may change
at once, and the order of rows with the next epoch; what would train rows twice is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.checks.checks_first import run_first_tests
from launch.config.again import data_changes, differences
from launch.config.job import Job
from launch.files.preparation import prepare
from launch.plan.of_run import PlanOfRun
from launch.run.supervise.parts import RunParts
from machine.typed import again
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Loading, Prepared, read_prepared, write_prepared

# What decides the order of rows, by its name in a checkpoint.
_KEYS = {"seed": "train.seed", "shuffle_mib": "data.shuffle_mib"}


def check_same_data(job: Job, prepared: Prepared) -> Iterator[str]:
    """Raise UserError if the samples differ from the resumed run's; yield a warning if forced.

    The samples of a step follow from the number and order of all samples. With different ones, some
    would be used twice and others never, and training samples could end up held out.
    """
    assert job.resume_from is not None
    before = RunDir(job.resume_from.parent.parent)
    changes = list(data_changes(read_prepared(before).train, prepared.train))
    if not changes:
        return
    what = (
        f"the data are not those of run {before.run_id}, which this one goes on from: "
        f"{'; '.join(changes)}"
    )
    if not job.force:
        raise UserError(
            what,
            do=f"{again(job.config.profile)} --force   # all the same; better: the data and "
            "settings as they were, or no --resume",
            code=ExitCode.DATA,
        )
    yield f"{what}: some rows may come twice, others never"


def check_order(job: Job, prepared: Prepared) -> Iterator[str]:
    """Yield what is not the same about the rows of the steps to come.

    Raises UserError, unless forced, for an order that no epoch of the run would have.
    """
    from train.batches.course import course_of, position_of

    assert job.resume_from is not None
    num_rows = prepared.train.num_samples
    course = course_of(job.config, num_rows, str(job.resume_from))
    was = position_of(job.resume_from, num_rows)
    if course.batch_size != was.batch_size:
        yield (
            f"train.global_batch_size is {course.batch_size}, it was {was.batch_size}: the run "
            f"goes on after {was.rows_used:,} of {num_rows:,} rows of epoch {was.epoch + 1}"
        )
    if len(course.draws) == 1:
        return
    before, now = course.draws[-2:]
    changed = {
        key: name for name, key in _KEYS.items() if getattr(before, name) != getattr(now, name)
    }
    what = ", ".join(
        f"{key} is {getattr(now, name)}, it was {getattr(before, name)}"
        for key, name in changed.items()
    )
    if now.from_epoch * num_rows < course.last_row:
        if course.draws != was.draws:
            yield f"{what}: from epoch {now.from_epoch + 1} on"
        return
    what += (
        f": that would begin with epoch {now.from_epoch + 1}, and the run ends before, after "
        f"{course.last_row:,} rows in epochs of {num_rows:,}"
    )
    if not job.force:
        as_it_was = " ".join(
            f"--set {key}={getattr(before, name)}" for key, name in changed.items()
        )
        raise UserError(
            what,
            do=f"{again(job.config.profile)} {as_it_was}   # as it was; or, for a later epoch, "
            f"--set {_longer(course)}",
            code=ExitCode.DATA,
        )
    yield f"{what}: it changes nothing"


def _longer(course: Any) -> str:
    """Return the setting with which the run has an epoch of the last order."""
    num_epochs = course.draws[-1].from_epoch + 1
    if course.end is not None:
        return f"train.epochs={num_epochs}"
    rows = num_epochs * course.num_rows - course.first_row
    return f"train.max_steps={course.first_step + math.ceil(rows / course.batch_size)}"


def make_ready(parts: RunParts, plan: PlanOfRun) -> Prepared:
    """Run the requested tests, prepare model and data, and have the run planned.

    Raises UserError if that fails or the run cannot fit, and Interrupted if a stop was requested.
    """
    plan.begin()
    for failed in run_first_tests(parts.job, parts.console, parts.env, parts.signals):
        raise failed
    prepared = have_prepared(parts)
    plan.begin(prepared)
    decided = plan.decided()
    complete = replace(
        prepared, bf16_updates=decided.bf16_updates, recomputed=decided.gradient_checkpointing
    )
    write_prepared(parts.run, complete)
    return complete


def have_prepared(parts: RunParts, *, start: str | None = None) -> Prepared:
    """Prepare model and data, and print what is notable about them.

    `start` overrides launch.start. Raises as `make_ready` does.
    """
    job, run = parts.job, parts.run
    with parts.events.span("prepare", what="model and data"):
        prepared = prepare(
            job.config, run, resume_from=job.resume_from, env=parts.env, signals=parts.signals
        )
        if job.resume_from is not None:
            for change in (*check_same_data(job, prepared), *check_order(job, prepared)):
                parts.say(f"airlock: {change}")
        if job.again is not None and (line := differences(job.again, prepared)):
            parts.say(line)
    if (run.path / "base_model").is_symlink():  # from the Hub, where a branch may have moved
        commit = Path(prepared.model_path).name
        parts.say(f"model: {job.config.model.path} at {commit[:7]}")
    _say_loading(parts, start or parts.config.start, prepared.loading)
    return prepared


def _say_loading(parts: RunParts, start: str, loading: Loading) -> None:
    """Print how the ranks get the model, and what is costly about it."""
    how = f"{loading.load} ({loading.reason})"
    if start == "warm":
        later = "" if loading.load == "mmap" else f"; should the start turn cold, {how}"
        how = f"mmap, once for all ranks{later}"
    meanwhile = "; read into memory meanwhile" if loading.read_in else ""
    parts.say(f"weights: {how}{meanwhile}")
    if loading.advice:
        parts.say(f"airlock: {loading.advice}")
