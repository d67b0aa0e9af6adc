"""One run from beginning to end: check → prepare → start the ranks → supervise → report."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from launch.address_space import mapped_files, predict, rank_limit, weight_files
from launch.environment import RankEnvironment, Variable
from launch.environment_text import environment_lines, left_out_lines
from launch.gate_folder import blind_spot, gate_folder
from launch.guard import MemoryGuard
from launch.output import Output
from launch.parent import become_subreaper
from launch.plan.of_run import PlanOfRun, show_plan_of
from launch.preflight import checks
from launch.preflight.checks import make_sure
from launch.prepare import model_folder
from launch.processes import OwnProcesses
from launch.ready import make_ready
from launch.records import (
    banner,
    environment_of,
    make_folder,
    torchrun_args_of,
    torchrun_line_of,
    write_environment,
)
from launch.report import exit_code, report
from launch.request import Job, Request, make_job
from launch.signals import Interrupted, Signals
from launch.state import new_state
from launch.supervise import Supervisor
from rundir.checkpoints import remove_half_written
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, runs_folder


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Do what was asked for. Raises UserError for what a person can mend."""
    job = make_job(request, environ)
    make_sure(job, environ, console, force=request.force)
    signals = Signals()
    signals.listen()
    output.on_reader_gone = signals.ask_to_stop
    processes = OwnProcesses()
    become_subreaper()
    folder, environment = make_folder(job, environ)
    _say_what(job, folder, environment, console)
    state = new_state(
        folder.run_id, job.config.profile, job.placement.num_ranks,
        of_script=job.config.script is not None,
    )  # fmt: skip
    events = EventWriter(folder.event_file("launch"))
    guard = MemoryGuard(
        job.config.limits, state=state, events=events, processes=processes, console=console
    )
    supervisor = Supervisor(
        run=folder, config=job.config.launch, state=state, console=console,
        signals=signals, events=events, processes=processes, guard=guard,
    )  # fmt: skip
    plan = PlanOfRun(request, job, folder, console, environ, signals)
    env = environment.of_child(environ)
    code = ExitCode.RANK_FAILED  # unless it is found to have ended otherwise
    try:
        supervisor.write_status()
        guard.start()
        files: list[Path] | None = None
        if job.config.script is None:
            files = mapped_files(make_ready(job, folder, console, env, events, signals, plan))
        if limit := _address_limit(job, files, env):
            _note_limit(console, folder, environment, limit)
            env[limit.name] = limit.value
        agent_code = supervisor.supervise(torchrun_args_of(job, folder), env, plan)
        code = exit_code(state, agent_code, signals)
    except Interrupted:
        code = ExitCode.INTERRUPTED_UNSAVED
    except UserError as seen:
        error = plan.explained(guard.explained(seen))
        code, state.status.error = error.code, str(error.args[0])
        raise error from None
    finally:
        plan.close()
        guard.stop()
        state.end(code)
        supervisor.write_status()
        _tidy_up(folder)
    report(console, folder, state, code)
    return code


def _say_what(job: Job, folder: RunDir, environment: RankEnvironment, console: Console) -> None:
    lines = [banner(job, folder), *left_out_lines(environment, job.config.launch.keep_env)]
    if unseen := blind_spot():
        lines.append(f"airlock: {unseen}")
    console.out("\n".join(lines), highlight=False)


def show(request: Request, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Print what `run` would do, and start nothing: configuration, environment, torchrun line."""
    job = make_job(request, environ)
    folder = RunDir(runs_folder() / "RUN_ID")
    environment = environment_of(job, folder, environ)
    what, files = "", None
    if job.config.script is None:
        what = ", once the data are prepared"
        files = weight_files(model_folder(job.config))  # none while it is not fetched or made
    if limit := _address_limit(job, files, environment.of_child(environ)):
        environment = environment.with_variable(limit)
    found = [checks.line_of(finding) for finding in checks.find(job, environ)]
    lines = [
        banner(job, folder), "", "this machine:", *found, "", config_text(job.config, job.sources),
        "environment of the ranks:", *environment_lines(environment),
        *left_out_lines(environment, job.config.launch.keep_env),
        "", f"the same with torch's own{what}:", torchrun_line_of(job, folder, environment),
    ]  # fmt: skip
    console.out("\n".join(lines), highlight=False)
    return show_plan_of(job, console, environ)


def _address_limit(job: Job, files: list[Path] | None, env: Mapping[str, str]) -> Variable | None:
    """The limit on a rank's address space, with its reason.

    `files` are those that a rank maps. Where that is not known (None), as of a script, there is
    only a limit that someone has asked for.
    """
    if files is None and job.config.limits.rlimit_as_gib <= 0:
        return None
    gpus = [gpu.memory_bytes for gpu in job.placement.gpus]
    return rank_limit(job.config.limits, predict(files or [], env["OMP_NUM_THREADS"], gpus))


def _note_limit(
    console: Console, folder: RunDir, environment: RankEnvironment, limit: Variable
) -> None:
    """Write it where the other variables stand; say so if the one predicted does not hold."""
    if limit.source == "predicted" and limit.value == "0":
        console.out(f"airlock: limit on a rank's address space: {limit.reason}", highlight=False)
    with contextlib.suppress(OSError):  # a full disk: the table without it is there
        write_environment(folder, environment.with_variable(limit))


def _tidy_up(folder: RunDir) -> None:
    """Remove what the processes of the run left: turns at the gate, half-written folders."""
    remove_half_written(folder)
    with contextlib.suppress(UserError):  # someone has changed the gate's folder meanwhile
        shutil.rmtree(gate_folder() / "runs" / folder.run_id, ignore_errors=True)
