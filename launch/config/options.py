"""Command-line options shared by several commands, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def joined(paths: tuple[str, ...]) -> str | None:
    """Return data paths joined as `data.path` takes them, or None if there are none.

    Raises click.BadParameter if one of several paths contains a comma.
    """
    if len(paths) > 1 and (odd := [path for path in paths if "," in path]):
        raise click.BadParameter(f"{odd[0]!r} has a comma in it: rename it, or give it alone")
    return ",".join(paths) or None


_OPTIONS = {
    "profile": click.option(
        "--profile",
        envvar="AIRLOCK_PRESET_PROFILE",
        default="tiny",
        show_default=True,
        help="Profile whose settings, model and data are taken.",
    ),
    "num_gpus": click.option(
        "--num-gpus", type=int, help="Ranks to start; by default one for each visible GPU."
    ),
    "data": click.option(
        "--data",
        metavar="PATH[:WEIGHT]",
        multiple=True,
        callback=lambda _context, _option, paths: joined(paths),
        help="Training data: a file, a folder or hf:OWNER/NAME; several times: mixed, each row "
        "WEIGHT times an epoch.",
    ),
    "set": click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a value of the configuration, as section.key=VALUE.",
    ),
    "resume": click.option(
        "--resume",
        metavar="[RUN]",
        is_flag=False,
        flag_value="latest",
        help="Go on from the last checkpoint of that run, or of the latest.",
    ),
    "again": click.option(
        "--again", metavar="RUN", help="Do that run, or an exported model, again from its start."
    ),
    "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
}


def options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the named options to a command, in the order of its help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate
