"""Resolution and checks of a request into a job that can be started; nothing is written yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.config.request import Request
from launch.config.resolve import resolve
from launch.config.script_request import resolve_script
from launch.files.data_file import check_data
from launch.files.model_folder import check_model
from launch.gate.folder import check_gate
from launch.host.allocator import users_alloc_conf
from launch.host.devices import Placement, asked_num_ranks, installed_gpus, place, visible_gpus
from launch.host.leftover_variables import check_keep_env
from launch.host.limits import check_limits
from launch.host.numa import NOT_ASKED, Bindings, bind_ranks
from launch.track.services import services_in
from rundir.checkpoints import complete_checkpoints, step_of
from rundir.config import RunConfig, Sources
from rundir.errors import UserError
from rundir.paths import RunDir, find_run, runs_folder
from rundir.starts import start_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A resolved and checked request."""

    config: RunConfig
    sources: Sources
    placement: Placement
    resume_from: Path | None
    force: bool = False  # continue despite objections
    bindings: Bindings = NOT_ASKED  # of ranks to NUMA nodes


def make_job(request: Request, environ: Mapping[str, str]) -> Job:
    """Resolve and check a request. Raises UserError for the first error found."""
    config, sources = resolve_job(request, environ)
    placement = place_job(request, config, sources, environ)
    if config.script is None:
        check_model(config)
        check_data(config)
    check_limits(config.limits)
    services_in(config.train.report_to)
    check_keep_env(config.launch.keep_env, environ)
    users_alloc_conf(environ)
    check_gate()
    launch = dataclasses.replace(config.launch, num_ranks=placement.num_ranks)
    return Job(
        config=dataclasses.replace(config, launch=launch),
        sources=sources | {"launch.num_ranks": placement.source},
        placement=placement,
        resume_from=None
        if request.resume is None
        else _checkpoint_of(_run_called(request.resume), config.train.max_steps),
        force=request.force,
        bindings=bind_ranks(launch, placement.gpus, environ),
    )


def resolve_job(request: Request, environ: Mapping[str, str]) -> tuple[RunConfig, Sources]:
    """Return the configuration of a request, and the source of each value. Raises UserError."""
    settings = request.all_settings()
    if request.script is not None:
        return resolve_script(request.script, settings, environ)
    resumed = None if request.resume is None else _run_called(request.resume)
    config, sources = resolve(request.profile, settings, environ, resumed)
    start_of(config)
    return config, sources


def place_job(
    request: Request, config: RunConfig, sources: Sources, environ: Mapping[str, str]
) -> Placement:
    """Return the device and number of ranks of a request. Raises UserError."""
    gpus = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    asked = asked_num_ranks(request.num_gpus, config, sources["launch.num_ranks"], environ)
    return place(config, asked, gpus)


def _run_called(name: str) -> RunDir:
    try:
        return find_run(name)
    except ValueError as error:
        raise UserError(str(error), do=f"ls {runs_folder()}") from error


def _checkpoint_of(run: RunDir, max_steps: int) -> Path:
    """Return the last complete checkpoint of `run`.

    Raises UserError if there is none, or no steps are left to train.
    """
    whole = complete_checkpoints(run.checkpoints)
    if not whole:
        raise UserError(
            f"run {run.run_id} has no whole checkpoint", do="start it anew, without --resume"
        )
    step = step_of(whole[-1])
    if 0 < max_steps <= step:
        raise UserError(
            f"run {run.run_id} has trained {step} steps, and train.max_steps is {max_steps}",
            do=f"--set train.max_steps={2 * step}, say, trains on",
        )
    return whole[-1]
