"""One run from start to end: check → prepare → start the ranks → supervise → report."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from launch.config.job import Job, make_job
from launch.config.records import (
    banner,
    environment_of,
    make_folder,
    torchrun_args_of,
    torchrun_line_of,
    write_environment,
)
from launch.config.request import Request
from launch.files.model_folder import model_folder
from launch.gate.folder import blind_spot, gate_folder
from launch.host.address_limit import rank_limit
from launch.host.address_space import mapped_files, predict, weight_files
from launch.host.environment_text import environment_lines, left_out_lines
from launch.host.gpu_samples import GpuSampler
from launch.host.rank_environment import Variable
from launch.plan.of_run import PlanOfRun, show_plan_of
from launch.preflight.checks import find, line_of, make_sure
from launch.process.output import Output
from launch.process.parent import become_subreaper
from launch.process.processes import OwnProcesses
from launch.process.signals import Interrupted, Signals
from launch.ready import make_ready
from launch.run_state.state import new_state
from launch.supervise.guard import MemoryGuard
from launch.supervise.policies import Watched
from launch.supervise.report import exit_code, report
from launch.supervise.supervisor import Supervisor
from launch.supervise.workload import workload_of
from launch.track.sidecar import Tracking
from rundir.checkpoints import remove_half_written
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, runs_folder


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Carry out the request and return its exit code. Raises UserError for what users can fix."""
    job = make_job(request, environ)
    make_sure(job, environ, console, force=request.force)
    signals = Signals()
    signals.listen()
    output.on_reader_gone = signals.ask_to_stop
    started = _Run(request, job, console, signals, environ)
    code = started.to_its_end()
    report(console, started.folder, started.state, code)
    return code


class _Run:
    """A run with its folder, and the parts that carry it out."""

    def __init__(
        self,
        request: Request,
        job: Job,
        console: Console,
        signals: Signals,
        environ: Mapping[str, str],
    ) -> None:
        self._job, self._console, self._signals = job, console, signals
        processes = OwnProcesses()
        become_subreaper()
        self.folder, self._environment = make_folder(job, environ)
        self._env = self._environment.of_child(environ)
        self._greet()
        self.state = new_state(
            self.folder.run_id,
            job.config.profile,
            job.placement.num_ranks,
            of_script=job.config.script is not None,
        )
        self._events = EventWriter(self.folder.event_file("launch"))
        self._guard = MemoryGuard(
            job.config.limits,
            state=self.state,
            events=self._events,
            processes=processes,
            console=console,
        )
        self._tracking = Tracking(self.folder, job.config, self._env, processes, console)
        self._plan = PlanOfRun(request, job, self.folder, console, environ, signals)
        watched = Watched(
            run=self.folder,
            config=job.config.launch,
            state=self.state,
            events=self._events,
            processes=processes,
            workload=workload_of(self.folder, self.state),
            console=console,
            signals=signals,
            gpus=GpuSampler(job.placement.gpus),
        )
        self._supervisor = Supervisor(watched, self._guard, self._tracking)

    def to_its_end(self) -> ExitCode:
        """Prepare, start the ranks and supervise them. Raises UserError for what users can fix."""
        code = ExitCode.RANK_FAILED  # unless another outcome is found
        try:
            self._supervisor.write_status()
            self._guard.start()
            self._limit_ranks(self._made_ready())
            args = torchrun_args_of(self._job, self.folder)
            agent_code = self._supervisor.supervise(args, self._env, self._plan)
            code = exit_code(self.state, agent_code, self._signals)
        except Interrupted:
            code = ExitCode.INTERRUPTED_UNSAVED
        except UserError as seen:
            error = self._plan.explained(self._guard.explained(seen))
            code, self.state.status.error = error.code, str(error.args[0])
            raise error from None
        finally:
            self._plan.close()
            self._guard.stop()
            self._tracking.end(self._signals)
            self.state.end(code)
            self._supervisor.write_status()
            _tidy_up(self.folder)
        return code

    def _greet(self) -> None:
        keep_env = self._job.config.launch.keep_env
        lines = [banner(self._job, self.folder), *left_out_lines(self._environment, keep_env)]
        if unseen := blind_spot():
            lines.append(f"airlock: {unseen}")
        lines += self._job.bindings.complaints()
        self._console.out("\n".join(lines), highlight=False)

    def _made_ready(self) -> list[Path] | None:
        """Prepare model and data; return the files that a rank will map, or None for a script."""
        if self._job.config.script is not None:
            return None
        return mapped_files(
            make_ready(
                self._job,
                self.folder,
                self._console,
                self._env,
                self._events,
                self._signals,
                self._plan,
            )
        )

    def _limit_ranks(self, files: list[Path] | None) -> None:
        """Limit the address space of the ranks; report if the predicted limit does not work."""
        limit = _address_limit(self._job, files, self._env)
        if limit is None:
            return
        self._env[limit.name] = limit.value
        if limit.source == "predicted" and limit.value == "0":
            what = f"airlock: limit on a rank's address space: {limit.reason}"
            self._console.out(what, highlight=False)
        with contextlib.suppress(OSError):  # a full disk: the file without the limit exists
            write_environment(self.folder, self._environment.with_variable(limit))


def show(request: Request, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Print the configuration, environment and torchrun line of a run, and start nothing."""
    job = make_job(request, environ)
    folder = RunDir(runs_folder() / "RUN_ID")
    environment = environment_of(job, folder, environ)
    what, files = "", None
    if job.config.script is None:
        what = ", once the data are prepared"
        model = model_folder(job.config)
        files = [] if model is None else weight_files(model)  # none until fetched or made
    if limit := _address_limit(job, files, environment.of_child(environ)):
        environment = environment.with_variable(limit)
    found = [line_of(finding) for finding in find(job, environ)]
    console.out("\n".join([banner(job, folder), "", "this machine:", *found, ""]), highlight=False)
    code = show_plan_of(job, console, environ)
    lines = [
        "",
        config_text(job.config, job.sources),
        "cores of the ranks (NUMA):",
        *job.bindings.lines(),
        "",
        "environment of the ranks:",
        *environment_lines(environment),
        *left_out_lines(environment, job.config.launch.keep_env),
        "",
        f"the equivalent torchrun command{what}:",
        torchrun_line_of(job, folder, environment),
    ]
    console.out("\n".join(lines), highlight=False)
    return code


def _address_limit(job: Job, files: list[Path] | None, env: Mapping[str, str]) -> Variable | None:
    """Return the address-space limit of a rank, with its reason.

    `files` are those that a rank maps. If they are not known (None), as for a script, only a limit
    that the user has set applies.
    """
    if files is None and job.config.limits.rlimit_as_gib <= 0:
        return None
    gpus = [gpu.memory_bytes for gpu in job.placement.gpus]
    predicted = predict(files or [], env["OMP_NUM_THREADS"], gpus)
    return rank_limit(job.config.limits, predicted, env)


def _tidy_up(folder: RunDir) -> None:
    """Remove what the processes of the run left: turns at the gate, half-written folders."""
    remove_half_written(folder)
    with contextlib.suppress(UserError):  # someone has changed the gate's folder since
        shutil.rmtree(gate_folder() / "runs" / folder.run_id, ignore_errors=True)
