"""The command line: `./airlock COMMAND`; `./start.sh` is `./airlock run`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from launch.output import make_console
from launch.request import Request
from launch.script_request import is_script, read_script
from rundir.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def airlock() -> None:
    """Bring training ranks up on one node, and fine-tune language models with native DDP."""


class _RunCommand(click.Command):
    """A command that leaves all that follows a script to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False  # so that it stops at the first word
        try:
            found, rest, _ = parser.parse_args(list(args))
        except click.UsageError:
            return super().parse_args(ctx, args)  # it says so too, but --help first
        word = found.get("profile")
        if not (isinstance(word, str) and is_script(word)):
            return super().parse_args(ctx, args)
        ctx.obj = [word, *rest]
        return super().parse_args(ctx, args[: len(args) - len(ctx.obj)])


@airlock.command(cls=_RunCommand, options_metavar="[OPTIONS]")
@click.argument("profile", required=False, metavar="[PROFILE | SCRIPT.py ARGS...]")
@click.option("--num-gpus", type=int, help="Ranks to start; one for each GPU by default.")
@click.option("--data", metavar="FILE", help="Training data, rows with `prompt` and `response`.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set section.key.")
@click.option("--max-restarts", type=click.IntRange(min=0), help="Restarts after a rank failed.")
@click.option("--resume", metavar="RUN", help="Go on from the last checkpoint of that run.")
@click.option(
    "--preload", metavar="NAMES", multiple=True,
    help="Modules to import once for all ranks of a script; -NAME leaves one out.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
@click.pass_obj
def run(script: list[str] | None, /, dry_run: bool, **options: Any) -> None:
    """Train PROFILE (tiny, 14b, 32b, …; 32b by default), or run a script written for torchrun.

    Options of Airlock's own stand before SCRIPT.py; what follows it is the script's.
    """
    from launch import run as launch_run

    console, output = make_console()
    try:
        request = _request(script, **options)
        if dry_run:
            code = launch_run.show(request, console, os.environ)
        else:
            code = launch_run.run(request, console, output, os.environ)
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        code = error.code
    output.discard_rest()
    sys.exit(int(code))


def _request(
    script: list[str] | None, profile: str | None, preload: tuple[str, ...], **options: Any
) -> Request:
    """What was asked for. Raises UserError for options that mean nothing where they stand."""
    if script is None:
        if preload:
            raise UserError("--preload is for scripts", do="leave it out: a profile has its own")
        profile = profile or os.environ.get("AIRLOCK_PRESET_PROFILE") or "32b"
        return Request(profile=profile, **options)
    for name in ("data", "resume"):
        if options[name] is not None:
            raise UserError(
                f"--{name} means nothing to a script",
                do=f"if {script[0]} has such an option, put it after its name",
            )
    return Request(profile="", script=read_script(script[0], script[1:], preload), **options)
