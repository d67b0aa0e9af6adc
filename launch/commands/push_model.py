"""`./airlock push`: the model of a run, with its card, to the Hub."""

from __future__ import annotations

import os
import shlex

import click
from rich.console import Console

from launch.commands.try_model import trained_run
from launch.commands.unknown_words import AnsweringCommand
from machine.processes import children
from machine.processes.output import with_console
from machine.processes.signals import Signals
from rundir.card.model_card import CARD, write_card
from rundir.errors import ExitCode, UserError
from rundir.paths import shown


@click.command(cls=AnsweringCommand)
@click.argument("run", metavar="RUN")
@click.argument("repo", metavar="OWNER/NAME")
@click.option(
    "--public", "is_public", is_flag=True, help="Make the repository public; else it is private."
)
@click.option("--adapter", "is_adapter", is_flag=True, help="Upload the adapters alone.")
@click.option("--replace", "replaces", is_flag=True, help="Replace what OWNER/NAME holds now.")
@with_console
def push(
    _: Console, run: str, repo: str, *, is_public: bool, replaces: bool, is_adapter: bool
) -> ExitCode:
    """Upload the model that RUN has trained, with its card, to the Hugging Face Hub."""
    trained = trained_run(run, "push")
    again = f"./airlock push {shlex.quote(shown(trained.path))}"
    if repo.count("/") != 1 or repo.startswith(("/", ".")) or repo.endswith("/"):
        raise UserError(f"{repo!r} is not OWNER/NAME", do=f"{again} OWNER/NAME")
    folder = trained.adapter if is_adapter or not trained.model.is_dir() else trained.model
    if not folder.is_dir():
        do = f"{again} {repo}   # uploads the model"
        raise UserError(f"{trained.run_id} has trained no adapters to upload alone", do=do)
    if not (folder / CARD).is_file():  # exported by an earlier version
        try:
            write_card(trained, folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the card of {folder} cannot be written: {error}",
                do=f"write {folder / CARD}, then: {again} {repo}",
                code=ExitCode.PREFLIGHT,
            ) from error
    words = [*(["public"] if is_public else []), *(["replace"] if replaces else [])]
    flags = {"--adapter": is_adapter, "--public": is_public}
    typed = " ".join([again, repo, *(flag for flag, is_set in flags.items() if is_set)])
    signals = Signals.listening()
    code = children.run(
        "launch.files.push", folder, repo, typed, *words, env=dict(os.environ), signals=signals
    )
    return ExitCode(code) if code in list(ExitCode) else ExitCode.PREFLIGHT
