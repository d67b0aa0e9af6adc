"""Records that a run writes before it starts: its folder, environment and torchrun command."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from launch.config.job import Job
from launch.config.rank_environment import RankEnvironment, rank_environment
from machine.typed import typed
from rundir import owner
from rundir.atomic import write_text
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, create_run
from rundir.versions import write_made_with


def torchrun_args_of(job: Job, folder: RunDir) -> list[str]:
    """Return torchrun's arguments, which are the agent's, to start the ranks of `job`."""
    return [
        "--nnodes=1",
        f"--nproc-per-node={job.placement.num_ranks}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",  # a free port; a fixed one could be in use
        f"--rdzv-id={folder.run_id}",
        f"--max-restarts={job.config.launch.max_restarts}",
        f"--log-dir={folder.elastic}",  # else every run leaves a folder in /tmp
        "-m",
        "launch.start.rank.rank",
    ]


def torchrun_line_of(job: Job, folder: RunDir, environment: RankEnvironment) -> str:
    """Return the shell command, with environment, that cold-starts the prepared run.

    For a script, it is the one that runs it without Airlock.
    """
    if (script := job.config.script) is None:
        unset = [word for leftover in environment.left_out for word in ("-u", leftover.name)]
        settings = [f"{variable.name}={variable.value}" for variable in environment.variables]
        return shlex.join(["env", *unset, *settings, "torchrun", *torchrun_args_of(job, folder)])
    restarts = job.config.launch.max_restarts
    options = ["--standalone", f"--nproc-per-node={job.placement.num_ranks}"]
    options += [f"--max-restarts={restarts}"] if restarts else []
    what = ["-m", script.module] if script.module else [script.path]
    return shlex.join(["torchrun", *options, *what, *script.args])


def make_folder(job: Job, environ: Mapping[str, str]) -> tuple[RunDir, RankEnvironment]:
    """Create the run folder with all that is known before the start.

    Returns it with the environment of the ranks. Raises UserError if it cannot be written.
    """
    try:
        is_training = job.config.scoring is None
        folder = create_run(job.name or job.config.profile, is_latest=is_training)
        owner.take(folder, str(typed(job.config.profile, environ)))
        environment = environment_of(job, folder, environ)
        write_text(folder.config, config_text(job.config, job.sources))
        write_environment(folder, environment)
        write_made_with(folder)
        write_command(folder, job, environment, environ)
    except OSError as error:
        raise UserError(
            f"cannot write the run folder: {error}",
            do="free space, or AIRLOCK_RUNS_DIR=/elsewhere",
            code=ExitCode.PREFLIGHT,
        ) from error
    return folder, environment


def environment_of(job: Job, folder: RunDir, environ: Mapping[str, str]) -> RankEnvironment:
    """Return the environment of the ranks of `job`."""
    return rank_environment(job.config, job.placement, folder, environ, bindings=job.bindings)


def write_environment(folder: RunDir, environment: RankEnvironment) -> None:
    """Write environment.json. Raises OSError."""
    write_text(folder.environment, json.dumps(environment.as_json(), indent=1) + "\n")


def write_command(
    folder: RunDir, job: Job, environment: RankEnvironment, environ: Mapping[str, str]
) -> None:
    """Write command.txt: what was typed, and torch's own equivalent of it. Raises OSError."""
    command = typed(job.config.profile, environ)
    if job.config.script is None:
        resumed = None if job.resume_from is None else RunDir(job.resume_from.parent.parent)
        command = command.pinned({"--resume": resumed, "--again": job.again})
    line = torchrun_line_of(job, folder, environment)
    write_text(folder.command, f"{command}\n\n# with torch's own:\n{line}\n")


def _batch(job: Job) -> str:
    """Return the samples of a step as ranks times micro-batches times samples."""
    train, num_ranks = job.config.train, job.placement.num_ranks
    share = math.ceil(train.global_batch_size / num_ranks)
    size = min(train.micro_batch_size, share)
    num = math.ceil(share / size)
    factors = ((num_ranks, "rank"), (num, "micro-batch"), (size, "sample"))
    product = " × ".join(_counted(*factor) for factor in factors)  # noqa: RUF001 - a product
    is_exact = num_ranks * num * size == train.global_batch_size
    fewer = "; packing makes fewer micro-batches" if job.config.data.packing and num > 1 else ""
    is_what = "=" if is_exact else "in at most"
    return f"{train.global_batch_size} samples a step {is_what} {product}{fewer}"


def _counted(number: int, what: str) -> str:
    plural = "es" if what.endswith("h") else "s"
    return f"{number} {what}{plural if number != 1 else ''}"


def banner(job: Job, folder: RunDir | None = None) -> str:
    """Return the first lines of a run's output: what runs, on which device, and in which folder."""
    placement = job.placement
    ranks = f"{placement.num_ranks} rank{'s' if placement.num_ranks > 1 else ''}"
    script = job.config.script
    what = job.config.profile if script is None else script.module or Path(script.path).name
    share = f", {_batch(job)}" if script is None and job.config.scoring is None else ""
    lines = [
        f"airlock: {what}, {ranks} on {placement.device} ({placement.source}){share}",
        *([job.notice] if job.notice else []),
        *([] if folder is None else [f"run {folder.path}"]),
    ]
    return "\n".join(lines)
