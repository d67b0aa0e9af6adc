"""`airlock plan`: from the command line to the plan on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from launch.config.extra_packages import require
from launch.config.job import Job
from launch.config.request import Request
from launch.config.resolve import resolve
from launch.config.script_request import is_script
from launch.files.model_folder import fetched_model_folder, made_model_folder
from launch.plan.fit import Fit
from launch.plan.host import weights_of
from launch.plan.instead import Instead, what_fits_instead
from launch.plan.plan import Host, Plan, this_host
from launch.plan.question import question_of
from launch.plan.show import show_instead, show_plan
from launch.plan.target import Target, choose_target, target_of_placement, with_ranks
from launch.plan.tracer import Tracer
from launch.plan.ways import Ways
from machine.gpus.devices import asked_num_ranks
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.footprint import Footprint
from rundir.starts import start_of


def plan(
    request: Request, console: Console, environ: Mapping[str, str], *, as_json: bool
) -> ExitCode:
    """Show the plan of what was requested. Raises UserError if there is none, and Interrupted."""
    if is_script(request.profile):
        raise UserError(
            f"there is no plan of a script, and {request.profile} is one",
            do="./airlock plan PROFILE; a script knows its model itself",
        )
    signals = Signals.listening()
    config, sources = resolve(request.profile, request.all_settings(), environ)
    start_of(config)
    require(config)
    asked = asked_num_ranks(request.num_gpus, config, sources["launch.num_ranks"], environ)
    target = choose_target(config, asked, request.gpu, environ)
    config = with_ranks(config, target.num_ranks)
    made = plan_of_ways(config, target, environ, signals)
    if not as_json:
        show_plan(console, made)
    instead = None
    if made.verdict not in (None, Fit.FITS):
        instead = what_fits_instead(made, request, environ, signals)
    if as_json:
        console.out(plan_text(made, instead))
    elif instead is not None:
        show_instead(console, instead)
    return ExitCode.DOES_NOT_FIT if made.verdict is Fit.DOES_NOT_FIT else ExitCode.DONE


def plan_of_ways(
    config: RunConfig, target: Target, environ: Mapping[str, str], signals: Signals
) -> Plan:
    """Trace the ways in which a run may go, and return the plan of the one to take.

    Raises UserError if they cannot be traced, and Interrupted when a stop was requested.
    """
    ways, host = Ways(config, target), this_host()
    questions = [question_of(config_, target.device) for config_ in ways.traced]
    footprints = Tracer(questions, environ).wait(signals)
    return ways.chosen(
        footprints, lambda config_, footprint: make_plan(config_, target, footprint, host)
    )


def plan_of_job(job: Job, environ: Mapping[str, str], signals: Signals) -> Plan:
    """Return the plan of a job on this machine. Raises as `plan_of_ways` does, and OSError."""
    return plan_of_ways(job.config, target_of_placement(job.placement), environ, signals)


def make_plan(
    config: RunConfig,
    target: Target,
    footprint: Footprint,
    host: Host,
    model_folder: Path | None = None,
) -> Plan:
    """Return the plan of a configuration that was traced."""
    folder = model_folder or fetched_model_folder(config)
    made = folder if config.model.path else made_model_folder(config)
    return Plan(
        config=config,
        target=target,
        footprint=footprint,
        host=host,
        weights=weights_of(config, made),
        model_folder=folder,
    )


def plan_text(made: Plan, instead: list[Instead] | None) -> str:
    """Return the plan as one JSON object; `instead` is null if no alternatives were looked for."""
    alternatives = None if instead is None else list(map(asdict, instead))
    return json.dumps(made.as_json() | {"instead": alternatives})
