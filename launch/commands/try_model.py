"""`./airlock try`: the model of a run answers, on one device, in a child that has the terminal."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringCommand
from launch.config.again import config_of
from machine.processes import children
from machine.processes.output import with_console
from machine.processes.runs import OVER, phase_of
from machine.typed import ls_runs, run_called, start_program, typed_run
from rundir.checkpoints import complete_checkpoints
from rundir.errors import ExitCode, UserError
from rundir.owner import is_owned
from rundir.paths import RunDir, shown
from rundir.prepared import read_prepared

_ENDED = {
    "done": "has ended without one",
    "failed": "has failed",
    "interrupted": "was interrupted",
}


@click.command("try", cls=AnsweringCommand)
@click.argument("run", metavar="RUN")
@click.argument("prompt", required=False)
@click.option("--beside-base", is_flag=True, help="Let the model as it was before answer as well.")
@click.option("--system", default="", metavar="TEXT", help="A system message to begin with.")
@click.option(
    "--raw", "is_raw", is_flag=True, help="Continue the prompt as text, without the chat template."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of new tokens.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0: the likeliest token, the same answer each time.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "mps", "cpu"]),
    default="auto",
    show_default=True,
    help="Device that answers.",
)
@with_console
def try_(
    _: Console, run: str, *, prompt: str | None, beside_base: bool, device: str, **sampling: Any
) -> ExitCode:
    """Talk to the model that RUN has trained, or let it answer PROMPT and end."""
    trained = trained_run(run, "try")
    if beside_base or not trained.model.is_dir():
        _check_base(trained, beside=beside_base)
    options = {"prompt": prompt, "beside_base": beside_base, "device": device, "way": sampling}
    env = dict(os.environ) | {"HF_HUB_OFFLINE": "1"}  # all files are here
    code = children.attend("train.talk", trained.path, json.dumps(options), env=env)
    if code < 0:
        raise UserError(
            f"the model's process was killed by signal {-code}",
            do="if nobody did that, memory ran out: `dmesg | grep -i oom`",
            code=ExitCode.OUT_OF_MEMORY,
        )
    return ExitCode(code) if code in list(ExitCode) else ExitCode.RANK_FAILED


def trained_run(name: str, verb: str) -> RunDir:
    """Return the run called `name`, which has exported a model. Raises UserError if not."""
    run = run_called(name)
    if run.model.is_dir() or run.adapter.is_dir():
        return run
    config = config_of(run, do=f"{ls_runs()}   # a run of a profile")
    phase, typed = phase_of(run), typed_run(run, config.profile)
    is_saved = bool(complete_checkpoints(run.checkpoints))
    again = typed.resumed(run) if is_saved else typed.again()
    if phase not in ("", *OVER):
        if not is_owned(run):
            raise UserError(
                f"{run.run_id} has no model: its launcher died while it was {phase}",
                do=f"./airlock doctor {shlex.quote(shown(run.path))}   # says more\n  → {again}",
            )
        again = f"./airlock {verb} {shlex.quote(shown(run.path))}"
        do = f"{again}   # once it is done; ./airlock ps shows it"
        raise UserError(f"{run.run_id} has no model yet: it is {phase}", do=do)
    ending = _ENDED.get(phase, "has ended early")
    saved = "" if is_saved else ", and nothing was saved"
    raise UserError(f"{run.run_id} has exported no model: it {ending}{saved}", do=again)


def _check_base(run: RunDir, *, beside: bool) -> None:
    """Raise UserError unless the weights that the run began with are here."""
    try:
        prepared = read_prepared(run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run.run_id}: {error}", do=f"ls {shlex.quote(str(run.path))}") from error
    base = Path(prepared.model_path)
    if prepared.loading.load == "random":
        do = f"./airlock try {shlex.quote(shown(run.path))}   # without --beside-base"
        if not (beside and run.model.is_dir()):  # adapters alone
            do = "train from a model that has files: such adapters belong to nothing"
        raise UserError(f"{run.run_id} began with random weights, of which no file is", do=do)
    if not (base / "config.json").is_file():
        again = f"{start_program()} --again {shlex.quote(shown(run.path))}"
        do = f"{again} --prepare-only   # fetches it"
        raise UserError(f"the base model of {run.run_id} is no longer in {base}", do=do)
