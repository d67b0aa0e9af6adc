"""Records that a run writes before it starts: its folder, environment and torchrun command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from launch.config.job import Job
from launch.host.rank_environment import RankEnvironment, rank_environment
from rundir.atomic import write_text
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, create_run


def torchrun_args(run: RunDir, num_ranks: int, max_restarts: int) -> list[str]:
    """Return torchrun's arguments to start `num_ranks` ranks of `run` on this node."""
    return [
        "--nnodes=1",
        f"--nproc-per-node={num_ranks}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",  # a free port; a fixed one could be in use
        f"--rdzv-id={run.run_id}",
        f"--max-restarts={max_restarts}",
        f"--log-dir={run.elastic}",  # else every run leaves a folder in /tmp
        "-m",
        "launch.rank.rank",
    ]


def torchrun_line(args: list[str], environment: RankEnvironment) -> str:
    """Return the shell command, with environment, that cold-starts a prepared run."""
    unset = [word for leftover in environment.left_out for word in ("-u", leftover.name)]
    settings = [f"{variable.name}={variable.value}" for variable in environment.variables]
    return shlex.join(["env", *unset, *settings, "torchrun", *args])


def plain_torchrun_line(config: RunConfig) -> str:
    """Return the shell command that runs the script of `config` without Airlock."""
    assert config.script is not None
    restarts = config.launch.max_restarts
    options = ["--standalone", f"--nproc-per-node={config.launch.num_ranks}"]
    options += [f"--max-restarts={restarts}"] if restarts else []
    return shlex.join(["torchrun", *options, config.script.path, *config.script.args])


def make_folder(job: Job, environ: Mapping[str, str]) -> tuple[RunDir, RankEnvironment]:
    """Create the run folder with all that is known before the start.

    Returns it with the environment of the ranks. Raises UserError if it cannot be written.
    """
    try:
        folder = create_run(job.config.profile)
        environment = environment_of(job, folder, environ)
        line = torchrun_line_of(job, folder, environment)
        write_text(folder.config, config_text(job.config, job.sources))
        write_environment(folder, environment)
        write_text(folder.command, f"{_typed(environ)}\n\n# with torch's own:\n{line}\n")
    except OSError as error:
        raise UserError(
            f"cannot write the run folder: {error}",
            do="free space, or AIRLOCK_RUNS_DIR=/elsewhere",
            code=ExitCode.PREFLIGHT,
        ) from error
    return folder, environment


def environment_of(job: Job, folder: RunDir, environ: Mapping[str, str]) -> RankEnvironment:
    """Return the environment of the ranks of `job`."""
    return rank_environment(
        job.config,
        job.placement,
        folder,
        environ,
        own_trainer=job.config.script is None,
        bindings=job.bindings,
    )


def write_environment(folder: RunDir, environment: RankEnvironment) -> None:
    """Write environment.json. Raises OSError."""
    write_text(folder.environment, json.dumps(environment.as_json(), indent=1) + "\n")


def torchrun_args_of(job: Job, folder: RunDir) -> list[str]:
    """Return the agent's arguments, which are torchrun's."""
    return torchrun_args(folder, job.placement.num_ranks, job.config.launch.max_restarts)


def torchrun_line_of(job: Job, folder: RunDir, environment: RankEnvironment) -> str:
    """Return the equivalent torchrun command."""
    if job.config.script is not None:
        return plain_torchrun_line(job.config)
    return torchrun_line(torchrun_args_of(job, folder), environment)


def banner(job: Job, folder: RunDir) -> str:
    """Return the first lines of a run's output: what runs, on which device, and where."""
    placement, batch = job.placement, job.config.train.global_batch_size
    ranks = f"{placement.num_ranks} rank{'s' if placement.num_ranks > 1 else ''}"
    script = job.config.script
    what = job.config.profile if script is None else Path(script.path).name
    share = f", {batch} samples a step over all ranks" if script is None else ""
    return (
        f"airlock: {what}, {ranks} on {placement.device} ({placement.source}){share}\n"
        f"run {folder.path}"
    )


def _typed(environ: Mapping[str, str]) -> str:
    """Return the command as the user typed it; start scripts name themselves in AIRLOCK_SCRIPT."""
    script, args = environ.get("AIRLOCK_SCRIPT", ""), sys.argv[1:]
    if not script:
        return shlex.join(["python", "-m", Path(sys.argv[0]).parent.name, *args])
    return shlex.join([script, *(args if script.endswith("airlock") else args[1:])])
