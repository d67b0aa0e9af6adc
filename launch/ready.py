"""Preparation for our own trainer before any rank starts: requested tests, model and data.

A resumed run must have the samples of the run that it resumes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.checks_first import run_first_tests
from launch.config.again import data_changes, differences
from launch.config.job import Job
from launch.files.preparation import prepare
from launch.plan.of_run import PlanOfRun
from launch.process.signals import Signals
from launch.process.typed import again
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import Loading, Prepared, read_prepared, write_prepared


def check_same_data(job: Job, prepared: Prepared) -> str | None:
    """Raise UserError if the samples differ from the resumed run's; return a warning if forced.

    The samples of a step follow from the number and order of all samples. With different ones, some
    would be used twice and others never, and training samples could end up held out.
    """
    assert job.resume_from is not None
    before = RunDir(job.resume_from.parent.parent)
    changes = list(data_changes(read_prepared(before).train, prepared.train))
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
        do=f"{again(job.config.profile)} --force   # all the same; better: the data and settings "
        "as they were, or no --resume",
        code=ExitCode.DATA,
    )


def make_ready(
    job: Job,
    folder: RunDir,
    console: Console,
    env: dict[str, str],
    events: EventWriter,
    signals: Signals,
    plan: PlanOfRun,
) -> Prepared:
    """Run the requested tests, prepare model and data, and have the run planned.

    Raises UserError if that fails or the run cannot fit, and Interrupted if a stop was requested.
    """
    plan.begin()
    for failed in run_first_tests(job, console, env, signals):
        raise failed
    prepared = have_prepared(job, folder, console, env, events, signals)
    plan.begin(prepared)
    if (updates := plan.updates()) != prepared.bf16_updates:
        prepared = replace(prepared, bf16_updates=updates)
        write_prepared(folder, prepared)
    return prepared


def have_prepared(
    job: Job,
    folder: RunDir,
    console: Console,
    env: dict[str, str],
    events: EventWriter,
    signals: Signals,
    *,
    start: str | None = None,
) -> Prepared:
    """Prepare model and data, and print what is notable about them.

    `start` overrides launch.start. Raises as `make_ready` does.
    """
    with events.span("prepare", what="model and data"):
        prepared = prepare(
            job.config, folder, resume_from=job.resume_from, env=env, signals=signals
        )
        if job.resume_from is not None and (line := check_same_data(job, prepared)):
            console.out(line, highlight=False)
        if job.again is not None and (line := differences(job.again, prepared)):
            console.out(line, highlight=False)
    if (folder.path / "base_model").is_symlink():  # from the Hub, where a branch may have moved
        commit = Path(prepared.model_path).name
        console.out(f"model: {job.config.model.path} at {commit[:7]}", highlight=False)
    _say_loading(console, start or job.config.launch.start, prepared.loading)
    return prepared


def _say_loading(console: Console, start: str, loading: Loading) -> None:
    """Print how the ranks get the model, and what is costly about it."""
    how = f"{loading.load} ({loading.reason})"
    if start == "warm":
        later = "" if loading.load == "mmap" else f"; should the start turn cold, {how}"
        how = f"mmap, once for all ranks{later}"
    console.out(f"weights: {how}", highlight=False)
    if loading.advice:
        console.out(f"airlock: {loading.advice}", highlight=False)
