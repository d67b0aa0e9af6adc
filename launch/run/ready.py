"""Preparation for our own trainer before any rank starts: requested tests, model and data.

A resumed run must have the samples of the run that it resumes; launch/run/resumed.py compares them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launch.checks.checks_first import run_first_tests
from launch.config.again import differences
from launch.files.preparation import prepare
from launch.plan.of_run import PlanOfRun
from launch.run.resumed import check_order, check_same_data
from launch.run.supervise.parts import RunParts
from rundir.prepared import Loading, Prepared, write_prepared


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
    parts.say(f"weights: {how}")
    if loading.advice:
        parts.say(f"airlock: {loading.advice}")
