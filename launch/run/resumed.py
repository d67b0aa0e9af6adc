"""What a resumed run trains on: the same rows as the run before it, each once an epoch.

The batch size may change at once, and the order of rows with the next epoch. What would train rows
twice, or change nothing, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from launch.config.again import data_changes
from launch.config.job import Job
from machine.typed import again
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared, read_prepared

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
