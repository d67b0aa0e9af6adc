"""The command line: `./airlock inbox [FOLDER] [COMMAND]`."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from inbox import ask
from inbox.layout import PRIORITIES, Layout
from inbox.settings import Settings
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
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


@inbox.command(name="serve")
@click.option(
    "--profile", required=True, help="Profile to train, as ./start.sh takes it: tiny, 14b, 32b, …"
)
@click.option(
    "--set",
    "settings",
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
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Attempts at a job, before it is set aside in failed/.",
)
@click.option(
    "--backoff-s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Wait after the first failure; it doubles with each further one, to an hour.",
)
@click.option(
    "--settle-s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="A file is complete once it has not changed for so long; or with FILE.ready at once.",
)
@click.option(
    "--poll-s",
    type=click.FloatRange(0.05),
    default=2.0,
    show_default=True,
    help="Pause between two looks, where inotify (the extra `inbox`) is not to be had.",
)
@click.option(
    "--min-free-gib",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="No training is started with less free disk.",
)
@click.option(
    "--forgetting",
    type=click.FloatRange(0),
    default=0.1,
    show_default=True,
    help="Share by which the loss on earlier sets may grow for a model to become current.",
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
    settings: tuple[str, ...],
    num_gpus: int | None,
    goes_on: bool,
    clone: Path,
    **options: Any,
) -> None:
    """Serve FOLDER (the default command): watch, queue and train until told to stop."""
    from inbox.daemon import serve as serve_folder

    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--num-gpus", str(num_gpus)] if num_gpus is not None else []
    try:
        layout.create()
        serve_folder(
            layout,
            Settings(
                options=tuple(words),
                fresh=not goes_on,
                clone=clone.resolve(),
                environ=dict(os.environ),
                **options,
            ),
        )
    except OSError as error:
        folder = layout.quoted
        raise UserError(
            f"{layout.path} cannot be used: {error}",
            do=f"ls -ld {folder}; df -h {folder}   # or another folder",
            code=ExitCode.PREFLIGHT,
        ) from error


@inbox.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def status(layout: Layout, *, as_json: bool) -> None:
    """Tell what the inbox does now; ends with 0 if it is healthy, idle or not."""
    ask.status(layout, as_json=as_json)


@inbox.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def list_(layout: Layout, *, as_json: bool) -> None:
    """List what was dropped, in the order in which it is trained."""
    ask.list_jobs(layout, as_json=as_json)


@inbox.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.pass_obj
def add(layout: Layout, files: tuple[Path, ...], *, priority: str) -> None:
    """Queue copies of FILES (or folders), which stay where they are."""
    ask.add(layout, files, priority)


@inbox.command()
@click.pass_obj
def pause(layout: Layout) -> None:
    """Start no further training; the present one goes on."""
    ask.pause(layout)


@inbox.command()
@click.pass_obj
def resume(layout: Layout) -> None:
    """Start trainings again."""
    ask.resume(layout)


@inbox.command()
@click.pass_obj
def stop(layout: Layout) -> None:
    """End the inbox: its training ends the step and saves, and goes on when it is started again."""
    ask.stop(layout)


@inbox.command()
@click.argument("job", default="")
@click.pass_obj
def skip(layout: Layout, job: str) -> None:
    """Set JOB aside in failed/: one that waits, or (by default) the one that trains."""
    ask.one(layout, "skip", job)


@inbox.command()
@click.argument("job")
@click.pass_obj
def retry(layout: Layout, job: str) -> None:
    """Queue JOB again: one of failed/, or a duplicate that is to be trained all the same."""
    ask.one(layout, "retry", job)


@inbox.command()
@click.argument("job")
@click.argument("priority", type=click.Choice(PRIORITIES))
@click.pass_obj
def priority(layout: Layout, job: str, priority: str) -> None:
    """Let JOB, which waits, be trained earlier or later."""
    ask.one(layout, "priority", job, priority)


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
