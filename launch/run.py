"""One run from beginning to end: check → prepare → start the ranks → supervise → report."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from launch import children
from launch.environment import RankEnvironment, rank_environment
from launch.environment_text import environment_lines, left_out_lines
from launch.gate_folder import blind_spot, gate_folder
from launch.output import Output
from launch.parent import become_subreaper
from launch.prepare import prepare
from launch.processes import OwnProcesses
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
from rundir.prepared import Loading, Prepared


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
    supervisor = Supervisor(
        run=folder, config=job.config.launch, state=state,
        console=console, signals=signals, events=events, processes=processes,
    )  # fmt: skip
    env = environment.of_child(environ)
    code = ExitCode.RANK_FAILED  # unless it is found to have ended otherwise
    try:
        supervisor.write_status()
        if not is_script:
            _run_tests(job, env, signals)
            with events.span("prepare", what="model and data"):
                prepared = prepare(
                    job.config, folder, resume_from=job.resume_from, env=env, signals=signals
                )
            _say_loading(console, job.config.launch.start, prepared.loading)
            _say_left_out(console, prepared, job.config.data.max_seq_length)
        agent_code = supervisor.supervise(_torchrun_args(job, folder), env)
        code = exit_code(state, agent_code, signals)
    except Interrupted:
        code = ExitCode.INTERRUPTED_UNSAVED
    except UserError as error:
        code, state.status.error = error.code, str(error.args[0])
        raise
    finally:
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
    what = "" if job.config.script else ", once the data are prepared"
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
        write_text(folder.environment, json.dumps(environment.as_json(), indent=1) + "\n")
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


def _run_tests(job: Job, env: dict[str, str], signals: Signals) -> None:
    """Run the diagnostics that RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST ask for.

    Raises UserError when one fails, and Interrupted when a stop was asked for.
    """
    for name, module in (
        ("RUN_IMPORT_TEST", "diagnostics.imports"),
        ("RUN_SINGLE_GPU_TEST", "diagnostics.single_gpu"),
    ):
        if env.get(name, "0") in ("", "0"):
            continue
        code = children.run(module, "--profile", job.config.profile, env=env, signals=signals)
        if code != 0:
            raise UserError(
                f"the test {module} failed with exit code {code}",
                do=f"mend what it says, or {name}=0 to start without it",
                code=ExitCode.PREFLIGHT,
            )


def _say_loading(console: Console, start: str, loading: Loading) -> None:
    """How the model gets into the ranks, and what is costly about it."""
    how = f"{loading.load} ({loading.reason})"
    if start == "warm":
        later = "" if loading.load == "mmap" else f"; should the start turn cold, {how}"
        how = f"mmap, once for all ranks{later}"
    console.out(f"weights: {how}", highlight=False)
    if loading.advice:
        console.out(f"airlock: {loading.advice}", highlight=False)


def _say_left_out(console: Console, prepared: Prepared, longest: int) -> None:
    """No sample is left out in silence."""
    for what, data in (("training", prepared.train), ("held-out", prepared.evaluation)):
        if data is not None and data.num_too_long:
            num = data.num_samples + data.num_too_long
            console.out(
                f"left out: {data.num_too_long:,} of {num:,} {what} samples have more than "
                f"{longest:,} tokens (data.max_seq_length)"
            )


def _tidy_up(folder: RunDir) -> None:
    """Remove what the processes of the run left: turns at the gate, half-written folders."""
    remove_half_written(folder)
    shutil.rmtree(gate_folder() / "runs" / folder.run_id, ignore_errors=True)
