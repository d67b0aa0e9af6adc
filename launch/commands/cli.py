"""The command-line interface: `./airlock COMMAND`; most commands have a file of their own here."""

from __future__ import annotations

import os
from pkgutil import resolve_name
from typing import Any

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringGroup
from launch.config.options import options
from launch.config.profiles import preset_profile
from launch.config.request import Request
from machine.processes.output import with_console
from rundir.errors import ExitCode

# Commands with a file of their own: each is imported only when it is typed.
_PLACES = {
    "attach": "attach:attach",
    "check": "check:check",
    "clean": "clean:clean",
    "data": "prepare_only:data",
    "evaluate": "evaluate:evaluate",
    "inbox": "handed_on:inbox",
    "monitor": "handed_on:monitor",
    "pause": "controls:pause",
    "push": "push_model:push",
    "report": "handed_on:report",
    "resume": "controls:resume",
    "run": "run:run",
    "save": "controls:save",
    "serve": "handed_on:serve",
    "set": "controls:set_",
    "trace": "trace:trace",
    "try": "try_model:try_",
}


class _Commands(AnsweringGroup):
    """The commands of this file, and those of `_PLACES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_PLACES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _PLACES:
            return super().get_command(ctx, cmd_name)
        command: click.Command = resolve_name(f"launch.commands.{_PLACES[cmd_name]}")
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def airlock() -> None:
    """Bring training ranks up on one node, and fine-tune language models with native DDP."""


@airlock.command()
@click.argument("profile", required=False)
@click.option("--gpu", metavar="NAME", help="Plan for such GPUs: 24G, 48G, H100-80G, H200, …")
@options("num_gpus", "data", "set", "json")
@with_console
def plan(console: Console, profile: str | None, as_json: bool, **options: Any) -> ExitCode:
    """Tell what memory PROFILE takes of GPUs and host, whether it fits, and what would instead.

    Nothing is started, and neither a GPU nor a network is needed; ends with 3 if it does not fit.
    """
    from launch.plan import planning

    request = Request(profile=profile or preset_profile(), **options)
    return planning.plan(request, console, os.environ, as_json=as_json)


@airlock.command()
@click.argument("profile", required=False)
@options("num_gpus", "set", "json")
@with_console
def preflight(console: Console, profile: str | None, as_json: bool, **options: Any) -> ExitCode:
    """Check whether this machine is ready for PROFILE; ends with 4 if it is not."""
    from launch.checks.preflight import show_preflight

    request = Request(profile=profile or preset_profile(), **options)
    return show_preflight(request, console, os.environ, as_json=as_json)


@airlock.command()
@click.argument("names", nargs=-1, metavar="[RUN | FILE | FOLDER | -]...")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    help="Look at a live process instead: a rank or the launcher of any training, as torchrun.",
)
@options("json")
@with_console
def doctor(console: Console, names: tuple[str, ...], **options: Any) -> None:
    """Name the root cause of a run that failed or hangs (the latest by default), and the fix.

    Any log will do, of whatever launcher: files, a folder of them, or - for what is piped in.
    """
    from doctor import command

    command.doctor(names, console, **options)


@airlock.command()
@with_console
def ps(console: Console) -> None:
    """Show your runs on this machine, with their processes; those of dead runs as well."""
    from launch.live import stop as launch_stop

    launch_stop.show(console)


@airlock.command()
@click.argument("run", metavar="RUN", required=False)
@with_console
def stop(console: Console, run: str | None) -> None:
    """End exactly one RUN: it saves and ends; of a dead one, what it has left is ended."""
    from launch.live import stop as launch_stop

    launch_stop.stop(run, console)


@airlock.command()
@click.argument("run", metavar="RUN")
@click.option("--to", "service", metavar="NAME", help="Send it to wandb or trackio instead.")
@with_console
def track(console: Console, run: str, service: str | None) -> None:
    """Write a run's TensorBoard files anew, from what it has measured."""
    from launch.track.tracking_process import track as track_run

    track_run(run, service, console)
