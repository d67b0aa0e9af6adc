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
from launch.config.flag_table import unread_variables
from launch.config.job import Job, examine, together
from launch.config.rank_environment import Variable
from launch.config.records import (
    torchrun_args_of,
    write_command,
    write_environment,
)
from launch.config.request import RUN, Request
from launch.plan.demo_that_fits import demo_that_fits
from launch.plan.of_run import PlanOfRun
from launch.run.ready import make_ready
from launch.run.supervise.guard import MemoryGuard
from launch.run.supervise.monitor_beside import require_monitor
from launch.run.supervise.parts import RunParts
from launch.run.supervise.report import exit_code, report
from launch.run.supervise.supervisor import Supervisor
from launch.start.gate.blind_spot import blind_spot
from launch.start.gate.folder import gate_folder
from machine.memory.address_space import mapped_files, predict
from machine.processes.output import Output
from machine.processes.parent import become_subreaper
from machine.processes.signals import Interrupted, Signals
from rundir.checkpoints import remove_half_written
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from state.run_state import RunState


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Carry out the request and return its exit code. Raises UserError for what users can fix."""
    job, errors = examine(request, environ)
    if job.placement.is_here and lacks_only_data(errors):
        return check_without_data(request, job, errors, console, environ)
    if errors:
        errors = as_typed(errors, request.profile, environ)
        raise together(errors if job.placement.is_here else with_checks_here(errors, request))
    job = demo_that_fits(job, request, environ)
    if job.config.launch.monitor:
        require_monitor()
    make_sure(job, environ, console, force=request.force)
    signals = Signals()
    signals.listen()
    output.on_reader_gone = signals.ask_to_stop
    _, _, code = carry_out(request, job, console, signals, environ, partial(report, console))
    if job.notice:
        console.out(job.notice, highlight=False)
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
    started = _Run(request, job, console, signals, environ)
    parts = started.parts
    try:
        code = started.to_its_end()
        say_end(parts.run, parts.state, code)
    finally:  # the report, and its incident, are there
        parts.on_event.end_of_run(signals)
    return parts.run, parts.state, code


class _Run:
    """A run from its folder to its last process."""

    def __init__(
        self,
        request: Request,
        job: Job,
        console: Console,
        signals: Signals,
        environ: Mapping[str, str],
    ) -> None:
        become_subreaper()
        self.parts = parts = RunParts(request, job, console, signals, environ, program=RUN)
        self._environ, self._env = environ, parts.env
        parts.greet(self._remarks(), environ)
        self._guard = MemoryGuard(
            job.config.limits,
            state=parts.state,
            events=parts.events,
            processes=parts.processes,
            console=console,
        )
        self._plan = PlanOfRun(request, job, parts.run, console, environ, signals)
        self._supervisor = Supervisor(parts, self._guard)

    def to_its_end(self) -> ExitCode:
        """Prepare, start the ranks and supervise them. Raises UserError for what users can fix."""
        code, parts = ExitCode.RANK_FAILED, self.parts  # unless another outcome is found
        try:
            parts.follower.write_status()
            self._guard.start()
            self._limit_ranks(self._made_ready())
            args = torchrun_args_of(parts.job, parts.run)
            agent_code = self._supervisor.supervise(args, self._env, self._plan)
            code = exit_code(parts.state, agent_code, parts.signals)
        except Interrupted:
            code = ExitCode.INTERRUPTED_UNSAVED
        except UserError as seen:
            error = self._plan.explained(self._guard.explained(seen))
            code = error.code
            parts.state.refused(error)
            raise error from None
        finally:
            self._plan.close()
            self._guard.stop()
            parts.tracking.end(parts.signals)
            parts.end(code)
            _tidy_up(parts.run)
        return code

    def _remarks(self) -> list[str]:
        """Return lines about this machine and this environment."""
        job, lines = self.parts.job, []
        if unseen := blind_spot():
            lines.append(f"airlock: {unseen}")
        if job.config.script is None:  # a script may read them itself
            lines += unread_variables(self._environ)
        return [*lines, *job.bindings.complaints()]

    def _made_ready(self) -> list[Path] | None:
        """Prepare model and data; return the files that a rank will map, or None for a script."""
        parts = self.parts
        if parts.job.config.script is not None:
            return None
        return mapped_files(make_ready(parts, self._plan))

    def _limit_ranks(self, files: list[Path] | None) -> None:
        """Limit the address space of the ranks; report if the predicted limit does not work."""
        limit = address_limit(self.parts.job, files, self._env)
        if limit is None:
            return
        self._env[limit.name] = limit.value
        if limit.source == "predicted" and limit.value == "0":
            what = f"airlock: limit on a rank's address space: {limit.reason}"
            self.parts.say(what)
        with contextlib.suppress(OSError):  # a full disk: the file without the limit exists
            limited = self.parts.environment.with_variable(limit)
            write_environment(self.parts.run, limited)
            write_command(self.parts.run, self.parts.job, limited, self._environ)


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


def _tidy_up(folder: RunDir) -> None:
    """Remove what the processes of the run left: turns at the gate, half-written folders."""
    remove_half_written(folder)
    with contextlib.suppress(UserError):  # someone has changed the gate's folder since
        shutil.rmtree(gate_folder() / "runs" / folder.run_id, ignore_errors=True)
