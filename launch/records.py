"""What a run leaves for people before it starts: its folder, its command, its environment."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from launch.environment import RankEnvironment, rank_environment
from launch.job import Job
from launch.torchrun import plain_torchrun_line, torchrun_args, torchrun_line
from rundir.atomic import write_text
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, create_run


def make_folder(job: Job, environ: Mapping[str, str]) -> tuple[RunDir, RankEnvironment]:
    """The run folder with all that is known before the start, and the ranks' environment.

    Raises UserError when it cannot be written.
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
    """The environment that the ranks of `job` get."""
    return rank_environment(
        job.config, job.placement, folder, environ, own_trainer=job.config.script is None
    )


def write_environment(folder: RunDir, environment: RankEnvironment) -> None:
    """Write environment.json. Raises OSError."""
    write_text(folder.environment, json.dumps(environment.as_json(), indent=1) + "\n")


def torchrun_args_of(job: Job, folder: RunDir) -> list[str]:
    """What the agent is told, in torchrun's own words."""
    return torchrun_args(folder, job.placement.num_ranks, job.config.launch.max_restarts)


def torchrun_line_of(job: Job, folder: RunDir, environment: RankEnvironment) -> str:
    """The command of torch's own that does the same."""
    if job.config.script is not None:
        return plain_torchrun_line(job.config)
    return torchrun_line(torchrun_args_of(job, folder), environment)


def banner(job: Job, folder: RunDir) -> str:
    """The first lines of a run: what, on what, and where."""
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
    """The command as a person typed it: the start scripts say who they are."""
    script, args = environ.get("AIRLOCK_SCRIPT", ""), sys.argv[1:]
    if not script:
        return shlex.join(["python", "-m", Path(sys.argv[0]).parent.name, *args])
    return shlex.join([script, *(args if script.endswith("airlock") else args[1:])])
