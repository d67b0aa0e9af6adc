"""What our own trainer needs before any rank starts: tests that were asked for, model, data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from launch import children
from launch.job import Job
from launch.plan.of_run import PlanOfRun
from launch.prepare import prepare
from launch.same_data import check_same_data
from launch.signals import Signals
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import Loading, Prepared


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
