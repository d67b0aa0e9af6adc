"""`./airlock run`, which is `./start.sh`: its options and its help, and what is asked with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringCommand
from launch.config.options import options
from launch.config.profiles import preset_profile, profile_of_run
from launch.config.request import PLAIN, RUN, Request
from launch.config.script_request import is_script, read_module, read_script
from machine.processes.output import Output, end_with
from rundir.errors import ExitCode, UserError


class _RunCommand(AnsweringCommand):
    """A command that passes all arguments after a script's name to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False  # stop at the first positional argument
        try:
            values, rest, _ = parser.parse_args(list(args))
        except click.UsageError:
            return super().parse_args(ctx, args)  # it raises that too, after --help
        word = values.get("profile")
        if not (isinstance(word, str) and (values.get("module") or is_script(word))):
            return super().parse_args(ctx, args)
        ctx.obj = [word, *rest]
        return super().parse_args(ctx, args[: len(args) - len(ctx.obj)])


_ENVIRONMENT = """\b
Environment (an option goes before it):
  NUM_GPUS=N             Ranks to start, as --num-gpus.
  CUDA_VISIBLE_DEVICES   The GPUs to use.
  RUN_IMPORT_TEST=1      First test whether all that a rank imports can be.
  RUN_SINGLE_GPU_TEST=1  First train a miniature of the model on one device.
                         Both: 1, true, yes, on; or 0, false, no, off.
  AIRLOCK_SECTION_KEY=V  As --set section.key=V (docs/configuration.md).
  HF_TOKEN               For models and data of the Hub that need one.

\b
What the start scripts preset:
  ./start.sh             32b, on all visible GPUs.
  ./start_single.sh      14b, on 1 GPU, both tests first.
  ./start_4gpu.sh        32b, on 4 GPUs.
"""


@click.command(cls=_RunCommand, options_metavar="[OPTIONS]", epilog=_ENVIRONMENT)
@click.argument(
    "profile", required=False, metavar="[PROFILE | SCRIPT.py ARGS... | -m MODULE ARGS...]"
)
@options("num_gpus", "data", "set", "resume", "again")
@click.option("--name", help="Name of the run: part of its folder's name; --resume NAME finds it.")
@click.option("--max-restarts", type=click.IntRange(min=0), help="Restarts after a rank failed.")
@click.option(
    "--on-event",
    metavar="CMD",
    help="Shell command to run when the run ends, fails or hangs: the facts are its input.",
)
@click.option(
    "--preload",
    metavar="NAMES",
    multiple=True,
    help="Modules to import once for a script's ranks; -NAME leaves one out, none all but torch.",
)
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
@click.option("--force", is_flag=True, help="Start although it cannot fit or end well here.")
@click.option("--demo", is_flag=True, help="Train a few steps on data that come with the clone.")
@click.option("--monitor", is_flag=True, help="Serve the run's pages while it lasts.")
@click.option("--plain", is_flag=True, help="Train in this one process, on one device.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
@click.option("--prepare-only", is_flag=True, help="Make model and data ready, without a GPU.")
@click.pass_obj
def run(
    script: list[str] | None,
    /,
    *,
    dry_run: bool,
    prepare_only: bool,
    plain: bool,
    monitor: bool,
    **options: Any,
) -> None:
    """Train PROFILE (tiny, 14b, 32b, …; 32b by default), or run a script written for torchrun.

    A profile that names no training data (14b, 32b) needs --data or --demo; without, it runs its
    checks (imports, one GPU, the plan), says what to type, and ends with 2.

    Options of Airlock's own stand before SCRIPT.py; what follows it is the script's. A module of
    a package, with relative imports, is run by -m PACKAGE.MODULE.
    """
    from launch.run.launched import run as launch_run

    if monitor:
        options["settings"] = (*options["settings"], "launch.monitor=true")

    def start(console: Console, output: Output) -> ExitCode:
        request = _request(script, **options)
        if plain:
            _refuse_for_plain(request, options, is_prepared_or_shown=dry_run or prepare_only)
        if prepare_only:
            from launch.commands import prepare_only as alone

            return alone.prepare_only(request, console, os.environ)
        if dry_run:
            from launch.commands.dry_run import show

            return show(request, console, os.environ)
        if plain:
            from launch.run import plain as plain_run

            return plain_run.run(request, console, output, os.environ)
        return launch_run(request, console, output, os.environ)

    end_with(start)


def _refuse_for_plain(
    request: Request, options: Mapping[str, Any], *, is_prepared_or_shown: bool
) -> None:
    """Raise UserError for what one process without a launcher cannot do."""
    if options["profile"] is None and not (options["again"] or options["resume"]):
        raise UserError(
            "--plain needs the name of a profile", do=request.command(PLAIN, {}, profile="tiny")
        )
    odd = {
        "a script": request.script is not None,
        f"--num-gpus {request.num_gpus}": request.num_gpus not in (None, 1),
        "--demo": request.demo,
        "--max-restarts": request.max_restarts is not None,
        "--dry-run and --prepare-only": is_prepared_or_shown,
    }
    if unfit := next((name for name, is_typed in odd.items() if is_typed), None):
        raise UserError(
            f"--plain trains a profile in one process, and is not for {unfit}",
            do=request.command(RUN, {}),
        )


def _profile_again(again: str, profile: str | None, resume: str | None) -> str:
    """Return the profile of the run to do again. Raises UserError if another one is named."""
    from launch.config.again import profile_of

    if resume is not None:
        raise UserError(
            "--again starts anew, and --resume goes on",
            do=f"./start.sh --again {again}, or ./start.sh --resume {resume}",
        )
    recorded = profile_of(again)
    if profile not in (None, recorded):
        raise UserError(
            f"{again} is of the profile {recorded}, not {profile}", do=f"./start.sh --again {again}"
        )
    return recorded


def _request(
    script: list[str] | None,
    profile: str | None,
    preload: tuple[str, ...],
    *,
    module: bool,
    **options: Any,
) -> Request:
    """Return the request. Raises UserError for options that do not apply to it."""
    if script is None:
        if module:
            raise UserError("-m needs the name of a module", do="./start.sh -m PACKAGE.MODULE ARGS")
        if preload:
            raise UserError("--preload is for scripts", do="leave it out: a profile has its own")
        if options["demo"] and options["resume"]:
            raise UserError(
                "--demo starts anew, and --resume goes on from a run", do="leave one of them out"
            )
        if options["again"] is not None:
            profile = _profile_again(options["again"], profile, options["resume"])
        elif profile is None and options["resume"] is not None:
            profile = profile_of_run(options["resume"])
        return Request(profile=profile or preset_profile(), **options)
    for name in ("data", "resume", "again", "demo"):
        if options[name]:
            raise UserError(
                f"--{name} means nothing to a script",
                do=f"if {script[0]} has such an option, put it after its name",
            )
    read = read_module if module else read_script
    return Request(profile="", script=read(script[0], script[1:], preload), **options)
