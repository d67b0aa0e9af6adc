"""`./airlock clean`: its options, and what is asked with them."""

from __future__ import annotations

import re

import click

from launch.config.options import options
from machine.processes.output import end_with

_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def _age(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, float]:
    """Return an age as it was typed, and in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([dhms])", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no age: 30d, 12h, 90m or 45s")
    return text.strip(), float(match[1]) * _UNITS_S[match[2]]


@click.command()
@click.option(
    "--older-than",
    callback=_age,
    default="30d",
    show_default=True,
    metavar="AGE",
    help="Leave what was used since: 30d, 12h, …",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Leave the last so many runs of each profile, however old.",
)
@click.option(
    "--inbox", metavar="FOLDER", help="Folder of an inbox: clean its runs and its models."
)
@click.option("--yes", is_flag=True, help="Remove it; without this it is only shown.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@options("json")
def clean(
    older_than: tuple[str, float],
    keep: int,
    inbox: str | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what Airlock has left and nobody has used for long, and with --yes remove it.

    Old runs, the checkpoints of runs that are done, prepared data. Never a live run or what it
    uses, the last good model of a profile with its best checkpoint, or what Airlock did not make.
    """
    from launch.clean.clean_up import clean as carry_out
    from launch.clean.item import Retention

    text, seconds = older_than
    kept, is_sure = Retention(older_than=text, older_than_s=seconds, keep=keep), yes and not dry_run
    end_with(
        lambda console, _: carry_out(kept, inbox, console, yes=is_sure, as_json=as_json),
    )
