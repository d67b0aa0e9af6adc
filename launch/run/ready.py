"""Preparation for our own trainer before any rank starts: requested tests, model and data.

A resumed run must have the samples of the run that it resumes; launch/run/resumed.py compares them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.checks.checks_first import run_first_tests
from launch.config.again import differences
from launch.config.job import Job
from launch.files.preparation import prepare
from launch.plan.of_run import PlanOfRun
from launch.run.resumed import check_order, check_same_data
from machine.processes.signals import Signals
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Loading, Prepared, write_prepared


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
        if job.resume_from is not None:
            for change in (*check_same_data(job, prepared), *check_order(job, prepared)):
                console.out(f"airlock: {change}", highlight=False)
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
