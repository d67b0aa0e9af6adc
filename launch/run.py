"""One run from beginning to end: check → prepare → start the ranks → supervise → report."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from launch.address_space import mapped_files, predict, rank_limit, weight_files
from launch.environment import RankEnvironment, Variable, rank_environment
from launch.environment_text import environment_lines, left_out_lines
from launch.gate_folder import blind_spot, gate_folder
from launch.guard import MemoryGuard
from launch.output import Output
from launch.parent import become_subreaper
from launch.prepare import model_folder
from launch.processes import OwnProcesses
from launch.ready import make_ready
from launch.report import exit_code, report
from launch.request import Job, Request, make_job
from launch.signals import Interrupted, Signals
from launch.state import new_state
from launch.supervise import Supervisor
from launch.torchrun import plain_torchrun_line, torchrun_args, torchrun_line
from rundir.atomic import write_text
from rundir.checkpoints import remove_half_written
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, create_run, runs_folder


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Do what was asked for. Raises UserError for what a person can mend."""
    job = make_job(request, environ)
    signals = Signals()
    signals.listen()
    output.on_reader_gone = signals.ask_to_stop
    processes = OwnProcesses()
    become_subreaper()
    folder, environment = _make_folder(job, environ)
    lines = [_banner(job, folder), *left_out_lines(environment, job.config.launch.keep_env)]
    if unseen := blind_spot():
        lines.append(f"airlock: {unseen}")
    console.out("\n".join(lines), highlight=False)
    is_script = job.config.script is not None
    state = new_state(
        folder.run_id, job.config.profile, job.placement.num_ranks, of_script=is_script
    )
    events = EventWriter(folder.event_file("launch"))
    guard = MemoryGuard(
        job.config.limits, state=state, events=events, processes=processes, console=console
    )
    supervisor = Supervisor(
        run=folder, config=job.config.launch, state=state, console=console,
        signals=signals, events=events, processes=processes, guard=guard,
    )  # fmt: skip
    env = environment.of_child(environ)
    code = ExitCode.RANK_FAILED  # unless it is found to have ended otherwise
    try:
        supervisor.write_status()
        guard.start()
        files = []
        if not is_script:
            files = mapped_files(make_ready(job, folder, console, env, events, signals))
        # What a script maps is not known, so only what someone asks for limits that.
        if not is_script or job.config.limits.rlimit_as_gib > 0:
            limit = _address_limit(job, files, env)
            _note_limit(console, folder, environment, limit)
            env[limit.name] = limit.value
        agent_code = supervisor.supervise(_torchrun_args(job, folder), env)
        code = exit_code(state, agent_code, signals)
    except Interrupted:
        code = ExitCode.INTERRUPTED_UNSAVED
    except UserError as seen:
        error = guard.explained(seen)
        code, state.status.error = error.code, str(error.args[0])
        raise error from None
    finally:
        guard.stop()
        state.end(code)
        supervisor.write_status()
        _tidy_up(folder)
    report(console, folder, state, code)
    return code


def show(request: Request, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Print what `run` would do, and start nothing: configuration, environment, torchrun line."""
    job = make_job(request, environ)
    folder = RunDir(runs_folder() / "RUN_ID")
    environment = _environment(job, folder, environ)
    what = ""
    if job.config.script is None:
        what = ", once the data are prepared"
        files = weight_files(model_folder(job.config))  # none while it is not fetched or made
        limit = _address_limit(job, files, environment.of_child(environ))
        environment = environment.with_variable(limit)
    lines = [
        _banner(job, folder), "", config_text(job.config, job.sources),
        "environment of the ranks:", *environment_lines(environment),
        *left_out_lines(environment, job.config.launch.keep_env),
        "", f"the same with torch's own{what}:", _torchrun_line(job, folder, environment),
    ]  # fmt: skip
    console.out("\n".join(lines), highlight=False)
    return ExitCode.DONE


def _make_folder(job: Job, environ: Mapping[str, str]) -> tuple[RunDir, RankEnvironment]:
    """The run folder with all that is known before the start, and the ranks' environment."""
    try:
        folder = create_run(job.config.profile)
        environment = _environment(job, folder, environ)
        line = _torchrun_line(job, folder, environment)
        write_text(folder.config, config_text(job.config, job.sources))
        _write_environment(folder, environment)
        write_text(folder.command, f"{_typed(environ)}\n\n# with torch's own:\n{line}\n")
    except OSError as error:
        raise UserError(
            f"cannot write the run folder: {error}",
            do="free space, or AIRLOCK_RUNS_DIR=/elsewhere",
            code=ExitCode.PREFLIGHT,
        ) from error
    return folder, environment


def _environment(job: Job, folder: RunDir, environ: Mapping[str, str]) -> RankEnvironment:
    return rank_environment(
        job.config, job.placement, folder, environ, own_trainer=job.config.script is None
    )


def _write_environment(folder: RunDir, environment: RankEnvironment) -> None:
    write_text(folder.environment, json.dumps(environment.as_json(), indent=1) + "\n")


def _address_limit(job: Job, files: list[Path], env: Mapping[str, str]) -> Variable:
    """The limit on a rank's address space, with its reason."""
    gpus = [gpu.memory_bytes for gpu in job.placement.gpus]
    return rank_limit(job.config.limits, predict(files, env["OMP_NUM_THREADS"], gpus))


def _note_limit(
    console: Console, folder: RunDir, environment: RankEnvironment, limit: Variable
) -> None:
    """Write it where the other variables stand; say so if the one predicted does not hold."""
    if limit.source == "predicted" and limit.value == "0":
        console.out(f"airlock: limit on a rank's address space: {limit.reason}", highlight=False)
    with contextlib.suppress(OSError):  # a full disk: the table without it is there
        _write_environment(folder, environment.with_variable(limit))


def _torchrun_args(job: Job, folder: RunDir) -> list[str]:
    return torchrun_args(folder, job.placement.num_ranks, job.config.launch.max_restarts)


def _torchrun_line(job: Job, folder: RunDir, environment: RankEnvironment) -> str:
    if job.config.script is not None:
        return plain_torchrun_line(job.config)
    return torchrun_line(_torchrun_args(job, folder), environment)


def _typed(environ: Mapping[str, str]) -> str:
    """The command as a person typed it: the start scripts say who they are."""
    script, args = environ.get("AIRLOCK_SCRIPT", ""), sys.argv[1:]
    if not script:
        return shlex.join(["python", "-m", "launch", *args])
    return shlex.join([script, *(args if script.endswith("airlock") else args[1:])])


def _banner(job: Job, folder: RunDir) -> str:
    placement, batch = job.placement, job.config.train.global_batch_size
    ranks = f"{placement.num_ranks} rank{'s' if placement.num_ranks > 1 else ''}"
    script = job.config.script
    what = job.config.profile if script is None else Path(script.path).name
    share = f", {batch} samples a step over all ranks" if script is None else ""
    return (
        f"airlock: {what}, {ranks} on {placement.device} ({placement.source}){share}\n"
        f"run {folder.path}"
    )


def _tidy_up(folder: RunDir) -> None:
    """Remove what the processes of the run left: turns at the gate, half-written folders."""
    remove_half_written(folder)
    with contextlib.suppress(UserError):  # someone has changed the gate's folder meanwhile
        shutil.rmtree(gate_folder() / "runs" / folder.run_id, ignore_errors=True)
