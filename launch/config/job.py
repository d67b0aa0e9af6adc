"""Resolution and checks of a request into a job that can be started; nothing is written yet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.config.again import check_unowned, pinned_revision, run_to_repeat
from launch.config.demo import with_demo
from launch.config.evaluation_sets import check_evaluations
from launch.config.first_tests import check_first_tests
from launch.config.leftover_variables import check_keep_env
from launch.config.request import PLAN, Request
from launch.config.resolve import resolve
from launch.config.script_request import resolve_script
from launch.files.data_file import check_data
from launch.files.model_folder import check_model
from launch.start.gate.folder import check_gate
from launch.track.services import services_in
from machine.cores.numa import NOT_ASKED, Bindings, bind_ranks
from machine.gpus.allocator import users_alloc_conf
from machine.gpus.devices import (
    USUAL_GPU,
    Placement,
    asked_num_ranks,
    installed_gpus,
    place,
    place_elsewhere,
    visible_gpus,
)
from machine.memory.limits import check_limits
from machine.typed import again, run_called, typed_run
from rundir.checkpoints import complete_checkpoints, step_of
from rundir.config import RunConfig, Sources
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import NAME, RunDir
from rundir.starts import start_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A resolved and checked request."""

    config: RunConfig
    sources: Sources
    placement: Placement
    resume_from: Path | None
    profile: str = ""  # as it was typed: a name, or the path of a file
    name: str | None = None  # of the run; None: that of the profile
    again: RunDir | None = None  # the run that is done again, from its start
    force: bool = False  # continue despite objections
    bindings: Bindings = NOT_ASKED  # of ranks to NUMA nodes
    notice: str = ""  # what the user is to know of it before and after: a demo is no training


def make_job(request: Request, environ: Mapping[str, str]) -> Job:
    """Resolve and check a request. Raises UserError with all errors that can be told at once."""
    job, errors = examine(request, environ)
    if errors:
        raise together(errors)
    return job


def examine(request: Request, environ: Mapping[str, str]) -> tuple[Job, list[UserError]]:
    """Return the job of a request, and what keeps it from being started.

    Raises UserError for errors after which there is no job to show.
    """
    config, sources = resolve_job(request, environ)
    errors: list[UserError] = []
    placement = _place_somewhere(request, config, sources, environ, errors)
    launch = config.launch
    checks: list[Callable[[], object]] = [
        lambda: check_limits(config.limits),
        lambda: services_in(config.train.report_to),
        lambda: check_keep_env(launch.keep_env, environ),
    ]
    if config.script is None:
        checks = [
            lambda: check_data(config),
            lambda: check_evaluations(config),
            lambda: check_first_tests(environ),
            *checks,
        ]
        if not request.demo:  # which may cut the model down: it is checked after that
            checks = [lambda: check_model(config), *checks]
    for check in checks:
        try:
            check()
        except UserError as error:
            errors.append(error)
    users_alloc_conf(environ)
    check_gate()
    resumed = None if request.resume is None else run_called(request.resume)
    if resumed is not None:
        check_unowned(resumed, request.profile)
    launch = dataclasses.replace(launch, num_ranks=placement.num_ranks)
    job = Job(
        config=dataclasses.replace(config, launch=launch),
        sources=sources | {"launch.num_ranks": placement.source},
        placement=placement,
        resume_from=None if resumed is None else _checkpoint_of(resumed, config.train.max_steps),
        profile=request.profile,
        name=_checked_name(request.name),
        again=None if request.again is None else run_to_repeat(request.again),
        force=request.force,
        bindings=bind_ranks(launch, placement.gpus, environ)
        if placement.is_here
        else Bindings(why_not="the GPUs are not here"),
    )
    return job, errors


def together(errors: Sequence[UserError]) -> UserError:
    """Return one error that says all of them, with the exit code of the first."""
    *others, last = errors
    texts = [*map(str, others), str(last.args[0])]
    return UserError("\nairlock: ".join(texts), do=last.do, code=errors[0].code)


def _place_somewhere(
    request: Request,
    config: RunConfig,
    sources: Sources,
    environ: Mapping[str, str],
    errors: list[UserError],
) -> Placement:
    """Return where the run is placed; if it cannot be here, add the error, and say where else."""
    requested: tuple[int, str] | None = None
    try:
        requested = _requested_ranks(request, config, sources, environ)
        return _placed(request, config, requested, environ)
    except UserError as error:
        errors.append(error)
    return place_elsewhere(config, requested)


def resolve_job(request: Request, environ: Mapping[str, str]) -> tuple[RunConfig, Sources]:
    """Return the configuration of a request, and the source of each value. Raises UserError."""
    settings = request.all_settings()
    if request.script is not None:
        return resolve_script(request.script, settings, environ)
    resumed = None if request.resume is None else run_called(request.resume)
    again = None if request.again is None else run_to_repeat(request.again)
    config, sources = resolve(request.profile, settings, environ, resumed or again)
    if again is not None:
        revision = pinned_revision(config, sources, again)
        model = dataclasses.replace(config.model, revision=revision)
        config = dataclasses.replace(config, model=model)
    if request.demo:
        config, sources = with_demo(config, sources)
    start_of(config)
    return config, sources


def place_job(
    request: Request, config: RunConfig, sources: Sources, environ: Mapping[str, str]
) -> Placement:
    """Return the device and number of ranks of a request. Raises UserError."""
    return _placed(request, config, _requested_ranks(request, config, sources, environ), environ)


def _placed(
    request: Request,
    config: RunConfig,
    requested: tuple[int, str] | None,
    environ: Mapping[str, str],
) -> Placement:
    visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    number = {} if requested is None else {"num_gpus": requested[0]}
    return place(config, requested, visible, request.command(PLAN, {}, gpu=USUAL_GPU, **number))


def _requested_ranks(
    request: Request, config: RunConfig, sources: Sources, environ: Mapping[str, str]
) -> tuple[int, str] | None:
    return asked_num_ranks(request.num_gpus, config, sources["launch.num_ranks"], environ)


def _checked_name(name: str | None) -> str | None:
    """Return the name for a run. Raises UserError if a folder cannot be called so."""
    if name is not None and (name == "latest" or not re.fullmatch(NAME, name)):
        better = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        raise UserError(
            f"--name {name!r}: it is to be up to 40 letters, digits, - _ or . and not latest",
            do=again("my-run" if better in ("", "latest") else better, instead_of=name),
        )
    return name


def _checkpoint_of(run: RunDir, max_steps: int) -> Path:
    """Return the last complete checkpoint of `run`.

    Raises UserError if there is none, or no steps are left to train.
    """
    whole = complete_checkpoints(run.checkpoints)
    if not whole:
        raise UserError(
            f"run {run.run_id} has no whole checkpoint",
            do=f"{typed_run(run).again()}   # starts it anew",
        )
    step = step_of(whole[-1])
    if 0 < max_steps <= step:
        raise UserError(
            f"run {run.run_id} has trained {step} steps, and train.max_steps is {max_steps}",
            do=f"{again(read_config(run.config).profile)} --set train.max_steps={2 * step}   # say",
        )
    return whole[-1]
