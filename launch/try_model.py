"""`./airlock try`: the model of a run answers, on one device, in a child that has the terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.again import config_of
from launch.process import children
from launch.process.typed import ls_runs, start_program
from launch.process.typed_run import typed_run
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, find_run, shown
from rundir.prepared import read_prepared
from rundir.status import read_status


def try_model(
    name: str,
    prompt: str | None,
    environ: Mapping[str, str],
    *,
    beside_base: bool,
    device: str,
    way: Mapping[str, Any],
) -> ExitCode:
    """Let the model of the run called `name` answer `prompt`, or whatever is typed.

    Raises UserError if there is no model to answer.
    """
    run = trained_run(name, "try")
    if beside_base or not run.model.is_dir():
        _check_base(run)
    options = {"prompt": prompt, "beside_base": beside_base, "device": device, "way": dict(way)}
    env = dict(environ) | {
        "PYTHONPATH": children.python_path(environ),
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",  # all files are here
    }
    code = children.attend("train.talk", run.path, json.dumps(options), env=env)
    if code < 0:
        raise UserError(
            f"the model's process was killed by signal {-code}",
            do="if nobody did that, memory ran out: `dmesg | grep -i oom`",
            code=ExitCode.OUT_OF_MEMORY,
        )
    return ExitCode(code) if code in list(ExitCode) else ExitCode.RANK_FAILED


def trained_run(name: str, verb: str) -> RunDir:
    """Return the run called `name`, which has exported a model. Raises UserError if not."""
    try:
        run = find_run(name)
    except ValueError as error:
        raise UserError(str(error), do=ls_runs()) from error
    if run.model.is_dir() or run.adapter.is_dir():
        return run
    config = config_of(run, do=f"{ls_runs()}   # a run of a profile")
    phase = _phase(run)
    if phase in ("preparing", "starting", "training", "paused", "finishing"):
        do = f"./airlock {verb} {shown(run.path)}   # once it is done; ./airlock ps shows it"
        raise UserError(f"{run.run_id} has no model yet: it is {phase}", do=do)
    raise UserError(
        f"{run.run_id} has exported no model: it {phase}",
        do=typed_run(run, config.profile).resumed(run),
    )


def _phase(run: RunDir) -> str:
    try:
        phase = str(read_status(run)["phase"])
    except (OSError, ValueError, KeyError):
        return "has ended early"
    said = {"failed": "has failed", "interrupted": "was interrupted", "stopping": "was stopped"}
    return "has ended without one" if phase == "done" else said.get(phase, phase)


def _check_base(run: RunDir) -> None:
    """Raise UserError unless the weights that the run began with are here."""
    try:
        prepared = read_prepared(run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run.run_id}: {error}", do=f"ls {shlex.quote(str(run.path))}") from error
    base, again = Path(prepared.model_path), f"./airlock try {shlex.quote(shown(run.path))}"
    without = f"{again}   # without --beside-base"
    if prepared.loading.load == "random":
        raise UserError(f"{run.run_id} began with random weights, of which no file is", do=without)
    if not (base / "config.json").is_file():
        do = f"{start_program()} --again {shown(run.path)} --prepare-only   # fetches it"
        raise UserError(f"the base model of {run.run_id} is no longer in {base}", do=do)
