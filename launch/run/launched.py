"""One run from start to end: check → prepare → start the ranks → supervise → report."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from launch.checks.checks_first import (
    as_typed,
    check_without_data,
    lacks_only_data,
    with_checks_here,
)
from launch.checks.preflight import make_sure
from launch.config.address_limit import rank_limit
from launch.config.extra_packages import FOR_PAGES, require_packages
from launch.config.flag_table import unread_variables
from launch.config.job import Job, examine, together
from launch.config.rank_environment import Variable
from launch.config.records import torchrun_args_of, write_command, write_environment
from launch.config.request import RUN, Request
from launch.plan.demo_that_fits import demo_that_fits
from launch.plan.of_run import PlanOfRun
from launch.run.ready import make_ready
from launch.run.supervise.guard import MemoryGuard
from launch.run.supervise.parts import RunParts
from launch.run.supervise.report import report
from launch.run.supervise.supervisor import Supervisor
from launch.start.gate.folder import gate_folder
from machine.memory.address_space import mapped_files, predict
from machine.processes.output import Output
from machine.processes.parent import become_subreaper
from machine.processes.signals import Signals
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from state.run_state import RunState


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Carry out the request and return its exit code. Raises UserError for what users can fix."""
    job, errors = examine(request, environ)
    if job.placement.is_here and lacks_only_data(errors):
        check_without_data(request, job, errors, console, environ)
    if errors:
        errors = as_typed(errors, request.profile, environ)
        raise together(errors if job.placement.is_here else with_checks_here(errors, request))
    job = demo_that_fits(job, request, environ)
    if job.config.launch.monitor:
        require_packages("monitor", FOR_PAGES)
    make_sure(job, environ, console, force=request.force)
    signals = Signals.listening()
    output.on_reader_gone = signals.ask_to_stop
    _, _, code = carry_out(request, job, console, signals, environ, partial(report, console))
    if job.notice:
        console.out(job.notice)
    return code


def carry_out(
    request: Request,
    job: Job,
    console: Console,
    signals: Signals,
    environ: Mapping[str, str],
    say_end: Callable[[RunDir, RunState, ExitCode], object] = lambda *_: None,
) -> tuple[RunDir, RunState, ExitCode]:
    """Carry out a job in a run folder of its own, which `say_end` reports. Raises UserError."""
    become_subreaper()
    parts = RunParts(request, job, console, signals, environ, program=RUN)
    parts.greet(_remarks(job, environ), environ)
    guard = MemoryGuard(
        job.config.limits,
        state=parts.state,
        events=parts.events,
        processes=parts.processes,
        console=console,
    )
    plan = PlanOfRun(request, job, parts.run, console, environ, signals)
    supervisor = Supervisor(parts, guard)

    def train() -> int:
        parts.follower.write_status()
        guard.start()
        is_script = job.config.script is not None
        _limit_ranks(parts, None if is_script else mapped_files(make_ready(parts, plan)), environ)
        return supervisor.supervise(torchrun_args_of(job, parts.run), plan)

    def close() -> None:
        plan.close()
        guard.stop()
        with contextlib.suppress(UserError):  # someone has changed the gate's folder since
            shutil.rmtree(gate_folder() / "runs" / parts.run.run_id, ignore_errors=True)

    try:
        code = parts.carry_out(
            train, close, explained=lambda error: plan.explained(guard.explained(error))
        )
        say_end(parts.run, parts.state, code)
    finally:  # the report, and its incident, are there
        parts.on_event.end_of_run(signals)
    return parts.run, parts.state, code


def _remarks(job: Job, environ: Mapping[str, str]) -> list[str]:
    """Return lines about this machine and this environment."""
    lines = []
    if job.config.script is None:  # a script may read them itself
        lines += unread_variables(environ)
    return [*lines, *job.bindings.complaints()]


def _limit_ranks(parts: RunParts, files: list[Path] | None, environ: Mapping[str, str]) -> None:
    """Limit the address space of the ranks; report if the predicted limit does not work."""
    limit = address_limit(parts.job, files, parts.env)
    if limit is None:
        return
    parts.env[limit.name] = limit.value
    if limit.source == "predicted" and limit.value == "0":
        parts.say(f"airlock: limit on a rank's address space: {limit.reason}")
    with contextlib.suppress(OSError):  # a full disk: the file without the limit exists
        limited = parts.environment.with_variable(limit)
        write_environment(parts.run, limited)
        write_command(parts.run, parts.job, limited, environ)


def address_limit(job: Job, files: list[Path] | None, env: Mapping[str, str]) -> Variable | None:
    """Return the address-space limit of a rank, with its reason.

    `files` are those that a rank maps. If they are not known (None), as for a script, or the GPUs
    are not here, only a limit that the user has set applies.
    """
    is_unknown = files is None or not job.placement.is_here
    if is_unknown and job.config.limits.rlimit_as_gib <= 0:
        return None
    gpus = [gpu.memory_bytes for gpu in job.placement.gpus]
    predicted = predict(files or [], env["OMP_NUM_THREADS"], gpus)
    return rank_limit(job.config.limits, predicted, env)
