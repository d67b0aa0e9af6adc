"""The command line: `./airlock COMMAND`; `./start.sh` is `./airlock run`."""

from __future__ import annotations

import os
import sys

import click

from launch.output import make_console
from launch.request import Request
from rundir.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def airlock() -> None:
    """Bring training ranks up on one node, and fine-tune language models with native DDP."""


@airlock.command()
@click.argument("profile", required=False)
@click.option("--num-gpus", type=int, help="Ranks to start; one for each GPU by default.")
@click.option("--data", metavar="FILE", help="Training data, rows with `prompt` and `response`.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set section.key.")
@click.option("--max-restarts", type=click.IntRange(min=0), help="Restarts after a rank failed.")
@click.option("--resume", metavar="RUN", help="Go on from the last checkpoint of that run.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
def run(
    profile: str | None,
    num_gpus: int | None,
    data: str | None,
    settings: tuple[str, ...],
    max_restarts: int | None,
    resume: str | None,
    dry_run: bool,
) -> None:
    """Train PROFILE (tiny, 14b, 32b, …; 32b by default): what ./start.sh does."""
    from launch import run as launch_run

    request = Request(
        profile=profile or os.environ.get("AIRLOCK_PRESET_PROFILE") or "32b",
        num_gpus=num_gpus,
        data=data,
        max_restarts=max_restarts,
        settings=settings,
        resume=resume,
    )
    console, output = make_console()
    try:
        if dry_run:
            code = launch_run.show(request, console, os.environ)
        else:
            code = launch_run.run(request, console, output, os.environ)
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        code = error.code
    output.discard_rest()
    sys.exit(int(code))
