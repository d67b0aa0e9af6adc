"""Alternatives that fit: every change is traced like the run itself, none is guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.config.request import PLAN, RUN, Request
from launch.plan.catalogue import CATALOGUE
from launch.plan.changes import Change, groups_of
from launch.plan.fit import Fit
from launch.plan.plan import Plan
from launch.plan.question import Question, question_of
from launch.plan.tracer import Tracer
from machine.processes.signals import Signals
from rundir.footprint import Footprint

_MOST = 6  # lines; the cheap ones come first
_TIMEOUT_S = 90.0  # for all: a change whose trace takes longer is left out


@dataclass(frozen=True, slots=True)
class Instead:
    """An alternative that fits, and the command for it."""

    what: str
    command: str


def what_fits_instead(
    plan: Plan, request: Request, environ: Mapping[str, str], signals: Signals
) -> list[Instead]:
    """Return the mildest change of each kind that makes the run fit, the cheapest kind first.

    Raises UserError when none of the changes can be traced, and Interrupted when a stop was
    requested.
    """
    groups = groups_of(plan, request.all_settings(), environ)
    changes = [change for group in groups for change in group]
    questions = [_question(plan, change) for change in changes]
    footprints = iter(Tracer(questions, environ, _TIMEOUT_S).wait_for_some(signals))
    alternatives: list[Instead] = []
    settled: list[set[str]] = []  # settings that suffice: with more of them it fits as well
    for group in groups:
        answered = [(change, next(footprints)) for change in group]
        for change, footprint in answered:
            if any(keys < change.settings.keys() for keys in settled):
                continue
            if footprint is not None and _fits(plan, change, footprint):
                alternatives.append(_instead(plan, request, change))
                settled += [set(change.settings)] if change.settings else []
                break
    return [*alternatives, *_larger_gpus(plan, request)][:_MOST]


def _question(plan: Plan, change: Change) -> Question:
    is_same_model = "profile" not in change.options
    folder = plan.model_folder if is_same_model else None
    return question_of(change.config, plan.target.device, folder)


def _fits(plan: Plan, change: Change, footprint: Footprint) -> bool:
    target = dataclasses.replace(plan.target, num_ranks=change.num_ranks)
    other = dataclasses.replace(plan, config=change.config, target=target, footprint=footprint)
    is_smaller = footprint.num_parameters < plan.footprint.num_parameters
    return other.verdict is Fit.FITS and ("profile" not in change.options or is_smaller)


def _instead(plan: Plan, request: Request, change: Change) -> Instead:
    program = RUN if plan.target.is_here else PLAN
    return Instead(change.what, request.command(program, change.settings, **change.options))


def _larger_gpus(plan: Plan, request: Request) -> Sequence[Instead]:
    """Return the smallest GPU that is large enough, if the GPU is what is too small."""
    if plan.target.gpu is None or plan.gpu_verdict is Fit.FITS:
        return []
    enough = [kind for kind in CATALOGUE if plan.on_gpu(kind) is Fit.FITS]
    if not enough:
        return []
    kind = min(enough, key=lambda gpu: gpu.memory_bytes)
    options: dict[str, str | int] = {"num_gpus": plan.target.num_ranks, "gpu": kind.name}
    return [Instead(f"a larger GPU: {kind.name}", request.command(PLAN, {}, **options))]
