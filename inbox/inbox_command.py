"""The command line: `./airlock inbox [FOLDER] [COMMAND]`, and `serve` among its commands."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from inbox.client_commands import COMMANDS
from inbox.inbox_settings import InboxSettings
from inbox.layout import Layout
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="",
    subcommand_metavar="[FOLDER] [COMMAND] [OPTIONS]",
)
def inbox() -> None:
    """Train whatever is dropped into FOLDER/inbox, one after the other, by ./start.sh.

    `./airlock inbox FOLDER --profile PROFILE` serves FOLDER; the other commands ask what does.
    FOLDER can be left out inside of it, or with AIRLOCK_INBOX_DIR. docs/inbox.md tells the rest.
    """


for _command in COMMANDS:
    inbox.add_command(_command)


def _number(name: str, least: float, text: str) -> Callable[[Any], Any]:
    """Return the option for a number of InboxSettings, which has its default."""
    default = next(field.default for field in fields(InboxSettings) if field.name == name)
    kind = click.IntRange(int(least)) if isinstance(default, int) else click.FloatRange(least)
    words = f"--{name.replace('_', '-')}"
    return click.option(words, type=kind, default=default, show_default=True, help=text)


@inbox.command(name="serve")
@click.option(
    "--profile", required=True, help="Profile to train, as ./start.sh takes it: tiny, 14b, 32b, …"
)
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a value of the configuration, as section.key=VALUE.",
)
@click.option("--num-gpus", type=int, help="Ranks to start; by default one for each visible GPU.")
@click.option(
    "--continue/--fresh",
    "goes_on",
    default=True,
    help="Each training starts from the last good model (default), or from the profile's.",
)
@_number("attempts", 1, "Attempts at a job, before it is set aside in failed/.")
@_number(
    "backoff_s", 0, "Wait after the first failure; it doubles with each further one, to an hour."
)
@_number(
    "settle_s",
    0,
    "A file is complete once it has not changed for so long; or with FILE.ready at once.",
)
@_number(
    "poll_s", 0.05, "Pause between two looks, where inotify (the extra `inbox`) is not to be had."
)
@_number("min_free_gib", 0, "No training is started with less free disk.")
@_number(
    "forgetting",
    0,
    "Share by which the loss on earlier sets may grow for a model to become current.",
)
@click.option("--monitor", is_flag=True, help="Serve the monitor's pages while it lasts.")
@click.option(
    "--clone",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=ROOT,
    help="Folder whose start.sh and airlock are run; by default that of this program.",
)
@click.pass_obj
def serve(
    layout: Layout,
    /,
    *,
    assignments: tuple[str, ...],
    num_gpus: int | None,
    goes_on: bool,
    clone: Path,
    **options: Any,
) -> None:
    """Serve FOLDER (the default command): watch, queue and train until told to stop."""
    from inbox.daemon import serve as serve_folder

    words = [word for assignment in assignments for word in ("--set", assignment)]
    words += ["--num-gpus", str(num_gpus)] if num_gpus is not None else []
    settings = InboxSettings(
        options=tuple(words),
        fresh=not goes_on,
        clone=clone.resolve(),
        environ=dict(os.environ),
        **options,
    )
    try:
        layout.create()
        serve_folder(layout, settings)
    except OSError as error:
        raise UserError(
            f"{layout.path} cannot be used: {error}",
            do=f"ls -ld {layout.quoted}; df -h {layout.quoted}   # or another folder",
            code=ExitCode.PREFLIGHT,
        ) from error


def main(words: Sequence[str]) -> None:
    """Run the command line, and exit."""
    try:
        folder, rest = split(list(words))
        layout = None if folder is None else Layout(folder.expanduser().absolute())
        try:
            inbox.main(rest, prog_name="airlock inbox", obj=layout, standalone_mode=False)
        except click.UsageError as error:
            raise _answer(error, folder or Path("FOLDER"), rest) from None
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        sys.exit(int(error.code))


def split(words: list[str]) -> tuple[Path | None, list[str]]:
    """Return the folder, and the words for click: a command stands first.

    Raises UserError if no folder is named and none can be meant. A folder that is called like a
    command is typed ./status.
    """
    if not words or words[0] in ("-h", "--help"):
        return None, words or ["--help"]
    if words[0] in inbox.commands or words[0].startswith("-"):
        folder, rest = None, words
    else:
        folder, rest = Path(words[0]), words[1:]
    if rest and not rest[0].startswith("-") and rest[0] not in inbox.commands:
        near = difflib.get_close_matches(rest[0], inbox.commands, n=1)
        do = shlex.join(["./airlock", "inbox", words[0], *(near or ["--help"]), *rest[1:]])
        raise UserError(f"no command {rest[0]!r}", do=do)
    if not rest or rest[0] not in inbox.commands:
        rest = ["serve", *rest]
    if folder is not None or any(word in ("-h", "--help") for word in rest):
        return folder, rest
    return _folder_meant(rest), rest


def _answer(error: click.UsageError, folder: Path, rest: list[str]) -> UserError:
    """Return what to say to words that click cannot read."""
    message = error.format_message().rstrip(".")
    serve = ["./airlock", "inbox", str(folder)]
    if isinstance(error, click.MissingParameter) and rest[0] == "serve":
        words = [*serve, "--profile", "14b", *rest[1:]]
    else:
        words = [*serve, rest[0], "--help"]
    return UserError(message[:1].lower() + message[1:], do=shlex.join(words))


def _folder_meant(rest: list[str]) -> Path:
    if named := os.environ.get("AIRLOCK_INBOX_DIR"):
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "inbox.lock").is_file():
            return folder
    raise UserError(
        "no folder is named, and this is none of an inbox",
        do=f"./airlock inbox FOLDER {' '.join(rest)}   # or AIRLOCK_INBOX_DIR=FOLDER",
    )
