"""What our own trainer needs before any rank starts: tests that were asked for, model, data.

A run that goes on from another must have the samples of that one.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from rundir.prepared import Loading, Prepared, PreparedData, read_prepared

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


def make_ready(
    job: Job,
    folder: RunDir,
    console: Console,
    env: dict[str, str],
    events: EventWriter,
    signals: Signals,
    plan: PlanOfRun,
) -> Prepared:
    """Run the tests that were asked for; make model and data ready, and have the run planned.

    Raises UserError when it cannot be done or cannot fit, and Interrupted when a stop was asked
    for.
    """
    plan.begin()
    _run_tests(job, env, signals)
    prepared = have_prepared(job, folder, console, env, events, signals)
    plan.begin(prepared)
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
    """Make model and data ready, and say what there is to say of them.

    `start` is how the model gets loaded, if not as launch.start says. Raises as `make_ready` does.
    """
    with events.span("prepare", what="model and data"):
        prepared = prepare(
            job.config, folder, resume_from=job.resume_from, env=env, signals=signals
        )
        if job.resume_from is not None and (line := check_same_data(job, prepared)):
            console.out(line, highlight=False)
    if (folder.path / "base_model").is_symlink():  # of the Hub: a branch there may have moved on
        commit = Path(prepared.model_path).name
        console.out(f"model: {job.config.model.path} at {commit[:7]}", highlight=False)
    _say_loading(console, start or job.config.launch.start, prepared.loading)
    return prepared


def _run_tests(job: Job, env: dict[str, str], signals: Signals) -> None:
    """Run the diagnostics that RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST ask for.

    Raises UserError when one fails, and Interrupted when a stop was asked for.
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
    """What was set on the command line; the rest a test finds as the run itself has."""
    for key, source in job.sources.items():
        section, _, name = key.partition(".")
        if source == f"option --set {key}":
            yield f"--set={key}={getattr(getattr(job.config, section), name)}"


def _say_loading(console: Console, start: str, loading: Loading) -> None:
    """How the model gets into the ranks, and what is costly about it."""
    how = f"{loading.load} ({loading.reason})"
    if start == "warm":
        later = "" if loading.load == "mmap" else f"; should the start turn cold, {how}"
        how = f"mmap, once for all ranks{later}"
    console.out(f"weights: {how}", highlight=False)
    if loading.advice:
        console.out(f"airlock: {loading.advice}", highlight=False)
