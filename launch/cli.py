"""The command-line interface: `./airlock COMMAND`; `./start.sh` is `./airlock run`."""

from __future__ import annotations

import os
from typing import Any

import click
from rich.console import Console

from launch.config.options import joined, options
from launch.config.request import Request
from launch.config.script_request import is_script, read_script
from launch.ladder.rungs import NAMES
from launch.process.output import Output, end_with
from rundir.errors import UserError
from rundir.exit_codes import ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def airlock() -> None:
    """Bring training ranks up on one node, and fine-tune language models with native DDP."""


class _RunCommand(click.Command):
    """A command that passes all arguments after a script's name to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False  # stop at the first positional argument
        try:
            found, rest, _ = parser.parse_args(list(args))
        except click.UsageError:
            return super().parse_args(ctx, args)  # it raises that too, after --help
        word = found.get("profile")
        if not (isinstance(word, str) and is_script(word)):
            return super().parse_args(ctx, args)
        ctx.obj = [word, *rest]
        return super().parse_args(ctx, args[: len(args) - len(ctx.obj)])


@airlock.command(cls=_RunCommand, options_metavar="[OPTIONS]")
@click.argument("profile", required=False, metavar="[PROFILE | SCRIPT.py ARGS...]")
@options("num_gpus", "data", "set", "resume")
@click.option("--max-restarts", type=click.IntRange(min=0), help="Restarts after a rank failed.")
@click.option(
    "--preload",
    metavar="NAMES",
    multiple=True,
    help="Modules to import once for all ranks of a script; -NAME leaves one out.",
)
@click.option("--force", is_flag=True, help="Start although it cannot fit or end well here.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
@click.option("--prepare-only", is_flag=True, help="Make model and data ready, without a GPU.")
@click.pass_obj
def run(script: list[str] | None, /, *, dry_run: bool, prepare_only: bool, **options: Any) -> None:
    """Train PROFILE (tiny, 14b, 32b, …; 32b by default), or run a script written for torchrun.

    Options of Airlock's own stand before SCRIPT.py; what follows it is the script's.
    """
    from launch import run as launch_run

    def start(console: Console, output: Output) -> ExitCode:
        request = _request(script, **options)
        if prepare_only:
            from launch import prepare_only as alone

            return alone.prepare_only(request, console, os.environ)
        if dry_run:
            return launch_run.show(request, console, os.environ)
        return launch_run.run(request, console, output, os.environ)

    end_with(start)


def _default_profile() -> str:
    return os.environ.get("AIRLOCK_PRESET_PROFILE") or "32b"


def _request(
    script: list[str] | None, profile: str | None, preload: tuple[str, ...], **options: Any
) -> Request:
    """Return the request. Raises UserError for options that do not apply to it."""
    if script is None:
        if preload:
            raise UserError("--preload is for scripts", do="leave it out: a profile has its own")
        return Request(profile=profile or _default_profile(), **options)
    for name in ("data", "resume"):
        if options[name] is not None:
            raise UserError(
                f"--{name} means nothing to a script",
                do=f"if {script[0]} has such an option, put it after its name",
            )
    return Request(profile="", script=read_script(script[0], script[1:], preload), **options)


@airlock.command()
@click.argument("files", nargs=-1, metavar="[FILE | FOLDER | hf:OWNER/NAME]...")
@click.option(
    "--profile",
    envvar="AIRLOCK_PRESET_PROFILE",
    default="32b",
    show_default=True,
    help="Whose settings and tokenizer.",
)
@options("set", "json")
def data(files: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Show what would be trained on of FILEs, without training: samples, loss, what is left out.

    Of the model only the tokenizer is fetched; --profile tiny needs none.
    """
    from launch import prepare_only as alone

    request = Request(data=joined(files), **options)
    end_with(lambda *_: alone.show_data(request, os.environ, as_json=as_json))


@airlock.command()
@click.argument("profile", required=False)
@click.option("--gpu", metavar="NAME", help="Plan for such GPUs: 24G, 48G, H100-80G, H200, …")
@options("num_gpus", "data", "set", "json")
def plan(profile: str | None, as_json: bool, **options: Any) -> None:
    """Tell what memory PROFILE takes of GPUs and host, whether it fits, and what would instead.

    Nothing is started, and neither a GPU nor a network is needed; ends with 3 if it does not fit.
    """
    from launch.plan import planning

    request = Request(profile=profile or _default_profile(), **options)
    end_with(lambda console, _: planning.plan(request, console, os.environ, as_json=as_json))


@airlock.command()
@click.argument("profile", required=False)
@options("num_gpus", "set", "json")
def preflight(profile: str | None, as_json: bool, **options: Any) -> None:
    """Check whether this machine is ready for PROFILE; ends with 4 if it is not."""
    from launch.preflight.checks import show_preflight

    request = Request(profile=profile or _default_profile(), **options)
    end_with(lambda console, _: show_preflight(request, console, os.environ, as_json=as_json))


@airlock.command()
@click.argument("names", nargs=-1, metavar="[RUN | FILE | FOLDER | -]...")
@options("json")
def doctor(names: tuple[str, ...], as_json: bool) -> None:
    """Name the root cause of a run that failed or hangs (the latest by default), and the fix.

    Any log will do, of whatever launcher: files, a folder of them, or - for what is piped in.
    """
    from diagnostics.doctor import command

    end_with(lambda console, _: command.doctor(names, console, as_json=as_json))


@airlock.command()
@click.argument("rung", required=False, type=click.Choice(NAMES))
@options("profile", "num_gpus", "data", "set")
@click.option("--all", "goes_on", is_flag=True, help="Go on after a rung that failed.")
@click.option("--timeout-s", type=click.FloatRange(min=1), help="Of each rung, or a part of it.")
@options("json")
def check(
    rung: str | None, *, goes_on: bool, as_json: bool, timeout_s: float | None, **options: Any
) -> None:
    """Climb the ladder: from the machine to training on all ranks, rung by rung.

    Stops at the first rung that fails, with what to do, and ends with 4. With RUNG, that one alone.
    """
    from launch.ladder import check_command

    request = Request(**options)
    end_with(
        lambda console, _: check_command.check(
            rung,
            request,
            console,
            os.environ,
            goes_on=goes_on,
            as_json=as_json,
            timeout_s=timeout_s,
        )
    )


@airlock.command()
def ps() -> None:
    """Show your runs on this machine, with their processes; those of dead runs as well."""
    from launch.process import stop as launch_stop

    end_with(lambda console, _: launch_stop.show(console))


@airlock.command()
@click.argument("run", metavar="RUN")
def stop(run: str) -> None:
    """End exactly one run: it saves and ends; of a dead one, what it has left is ended."""
    from launch.process import stop as launch_stop

    end_with(lambda console, _: launch_stop.stop(run, console))


@airlock.command()
@click.argument("run", metavar="RUN")
@click.option("--to", "service", metavar="NAME", help="Send it to wandb or trackio instead.")
def track(run: str, service: str | None) -> None:
    """Write a run's TensorBoard files anew, from what it has measured."""
    from launch.track.process import track as track_run

    end_with(lambda console, _: track_run(run, service, console))
