"""The demo on this machine: the whole model if the plan says that it may fit, else two layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from launch.config.demo import DEMO, NUM_LAYERS, NUM_STEPS, cut_down, num_layers_of
from launch.config.job import Job
from launch.config.request import Request
from launch.files.model_folder import check_model
from launch.plan.fit import Fit
from launch.plan.planning import plan_of_job
from launch.plan.show import verdict_lines
from machine.processes.signals import Signals
from rundir.errors import UserError


def demo_that_fits(job: Job, request: Request, environ: Mapping[str, str]) -> Job:
    """Return the job as it is, or of a demo that cannot fit one with the model cut down.

    Either way, a demo's `notice` says what it is. Raises UserError if there is no whole model.
    Nothing listens to signals yet: Ctrl-C ends this.
    """
    if not request.demo:
        return job
    why = _why_not_whole(job, environ)
    cut = cut_down(job.config, job.sources) if why else None
    if cut is None:
        check_model(job.config)
        notice = f"airlock: demo: the whole model, {NUM_STEPS} steps on little data; not a training"
        return dataclasses.replace(job, notice=notice)
    config, sources = cut
    layers = f"{NUM_LAYERS} of the {num_layers_of(job.config)} layers of {config.profile}"
    notice = (
        f"airlock: DEMO WITH A MODEL CUT DOWN: {layers}, RANDOM WEIGHTS, a byte tokenizer\n"
        f"  why: {why}\n"
        "  It shows that ranks start and train here. What it trains is of no use."
    )
    return dataclasses.replace(job, config=config, sources=sources, notice=notice)


def _why_not_whole(job: Job, environ: Mapping[str, str]) -> str:
    """Return why the whole model cannot be trained here; empty if it fits, or none can tell."""
    if job.placement.device == "cpu" and job.sources["launch.needs_gpu"] == DEMO:
        return "the run is on CPU, and the profile is for GPUs"
    try:
        plan = plan_of_job(job, environ, Signals())
    except (UserError, OSError):  # the run itself reports why there is no plan
        return ""
    lines = verdict_lines(plan) if plan.verdict is Fit.DOES_NOT_FIT else []
    return "; ".join(line for line in lines if line.startswith(Fit.DOES_NOT_FIT))
