"""Preparation for our own trainer before any rank starts: requested tests, model and data.

A resumed run must have the samples of the run that it resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.config.job import Job
from launch.files.preparation import prepare
from launch.plan.of_run import PlanOfRun
from launch.process import children
from launch.process.signals import Signals
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import Loading, Prepared, PreparedData, read_prepared, write_prepared

_CHANGED = {
    "files": "their files have changed",
    "tokenizer": "the tokenizer or the chat template has changed",
}


def check_same_data(job: Job, prepared: Prepared) -> str | None:
    """Raise UserError if the samples differ from the resumed run's; return a warning if forced.

    The samples of a step follow from the number and order of all samples. With different ones, some
    would be used twice and others never, and training samples could end up held out.
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
    if not before.made_of or not now.made_of:  # prepared by an earlier version
        return
    if before.is_streamed != now.is_streamed:
        words = ("prepared", "streamed")
        yield f"they were {words[before.is_streamed]}, and are {words[now.is_streamed]}"
        return
    for name, value in now.made_of.items():
        was = before.made_of.get(name, value)
        if was != value:
            yield _CHANGED.get(name) or f"{name} was {was}, is {value}"


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
    _run_tests(job, env, signals)
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
    if (folder.path / "base_model").is_symlink():  # from the Hub, where a branch may have moved
        commit = Path(prepared.model_path).name
        console.out(f"model: {job.config.model.path} at {commit[:7]}", highlight=False)
    _say_loading(console, start or job.config.launch.start, prepared.loading)
    return prepared


def _run_tests(job: Job, env: dict[str, str], signals: Signals) -> None:
    """Run the diagnostics that RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST request.

    Raises UserError if one fails, and Interrupted if a stop was requested.
    """
    for name, module in (
        ("RUN_IMPORT_TEST", "diagnostics.imports"),
        ("RUN_SINGLE_GPU_TEST", "diagnostics.single_gpu"),
    ):
        if env.get(name, "0") in ("", "0"):
            continue
        options = ["--profile", job.config.profile, *_typed_settings(job)]
        code = children.run(module, *options, env=env, signals=signals)
        if code != 0:
            raise UserError(
                f"the test {module} failed with exit code {code}",
                do=f"mend what it says, or {name}=0 to start without it",
                code=ExitCode.PREFLIGHT,
            )


def _typed_settings(job: Job) -> Iterator[str]:
    """Yield the command line's settings as options; a test resolves the rest as the run does."""
    for key, source in job.sources.items():
        section, _, name = key.partition(".")
        if source == f"option --set {key}":
            yield f"--set={key}={getattr(getattr(job.config, section), name)}"


def _say_loading(console: Console, start: str, loading: Loading) -> None:
    """Print how the ranks get the model, and what is costly about it."""
    how = f"{loading.load} ({loading.reason})"
    if start == "warm":
        later = "" if loading.load == "mmap" else f"; should the start turn cold, {how}"
        how = f"mmap, once for all ranks{later}"
    console.out(f"weights: {how}", highlight=False)
    if loading.advice:
        console.out(f"airlock: {loading.advice}", highlight=False)
