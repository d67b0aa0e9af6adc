"""Does a run go on with the samples of the run that it goes on from?"""

from __future__ import annotations

from collections.abc import Iterator

from launch.job import Job
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedData, read_prepared

_CHANGED = {
    "files": "their files have changed",
    "tokenizer": "the tokenizer or the chat template has changed",
}


def check_same_data(job: Job, prepared: Prepared) -> str | None:
    """Raise UserError if the samples are others, unless that is `force`d: then what to say.

    A step's samples follow from their number and order: with others some would come twice, others
    never, and what was trained on could be held out.
    """
    assert job.resume_from is not None
    before = RunDir(job.resume_from.parent.parent)
    changes = list(_changes(read_prepared(before).train, prepared.train))
    if not changes:
        return None
    what = (
        f"the data are not those of run {before.run_id}, which this one goes on from: "
        f"{'; '.join(changes)}"
    )
    if job.force:
        return f"airlock: {what}: some rows may come twice, others never"
    raise UserError(
        what,
        do=f"the data and settings as they were; or --force, or ./start.sh {job.config.profile} "
        "without --resume",
        code=ExitCode.DATA,
    )


def _changes(before: PreparedData, now: PreparedData) -> Iterator[str]:
    if not before.made_of or not now.made_of:  # by an earlier version
        return
    if before.is_streamed != now.is_streamed:
        words = ("prepared", "streamed")
        yield f"they were {words[before.is_streamed]}, and are {words[now.is_streamed]}"
        return
    for name, value in now.made_of.items():
        was = before.made_of.get(name, value)
        if was != value:
            yield _CHANGED.get(name) or f"{name} was {was}, is {value}"
