"""The command-line interface: `./airlock COMMAND`, but run: launch/commands/run.py."""

from __future__ import annotations

import os
from typing import Any

import click

from launch.checks.rungs import NAMES
from launch.commands.clean import clean
from launch.commands.controls import COMMANDS
from launch.commands.evaluate import evaluate
from launch.commands.handed_on import inbox, monitor, report, serve
from launch.commands.run import preset_profile, run
from launch.commands.unknown_words import AnsweringGroup
from launch.config.options import joined, options
from launch.config.request import Request
from machine.processes.output import end_with


@click.group(cls=AnsweringGroup, context_settings={"help_option_names": ["-h", "--help"]})
def airlock() -> None:
    """Bring training ranks up on one node, and fine-tune language models with native DDP."""


airlock.add_command(run)
airlock.add_command(evaluate)
airlock.add_command(inbox)
airlock.add_command(clean)
airlock.add_command(report)
airlock.add_command(serve)
airlock.add_command(monitor)
for control in COMMANDS:
    airlock.add_command(control)


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
    from launch.commands import prepare_only as alone

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

    request = Request(profile=profile or preset_profile(), **options)
    end_with(lambda console, _: planning.plan(request, console, os.environ, as_json=as_json))


@airlock.command()
@click.argument("profile", required=False)
@options("num_gpus", "set", "json")
def preflight(profile: str | None, as_json: bool, **options: Any) -> None:
    """Check whether this machine is ready for PROFILE; ends with 4 if it is not."""
    from launch.checks.preflight import show_preflight

    request = Request(profile=profile or preset_profile(), **options)
    end_with(lambda console, _: show_preflight(request, console, os.environ, as_json=as_json))


@airlock.command()
@click.argument("names", nargs=-1, metavar="[RUN | FILE | FOLDER | -]...")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    help="Look at a live process instead: a rank or the launcher of any training, as torchrun.",
)
@options("json")
def doctor(names: tuple[str, ...], pid: int | None, as_json: bool) -> None:
    """Name the root cause of a run that failed or hangs (the latest by default), and the fix.

    Any log will do, of whatever launcher: files, a folder of them, or - for what is piped in.
    """
    from doctor import command

    end_with(lambda console, _: command.doctor(names, console, as_json=as_json, pid=pid))


@airlock.command()
@click.argument("rung", required=False, type=click.Choice(NAMES))
@options("profile", "num_gpus", "data", "set")
@click.option(
    "--climb",
    metavar="PROFILE",
    help="Instead: short runs of PROFILE on 2, 100, 1,000 and all examples, then on 2, 4, 8 ranks.",
)
@click.option("--all", "goes_on", is_flag=True, help="Go on after a rung that failed.")
@click.option(
    "--timeout-s", type=click.FloatRange(min=1), help="Longest time for a rung, or a part of it."
)
@options("json")
def check(
    rung: str | None,
    *,
    climb: str | None,
    goes_on: bool,
    as_json: bool,
    timeout_s: float | None,
    **options: Any,
) -> None:
    """Climb the ladder: from the machine to training on all ranks, rung by rung.

    Stops at the first rung that fails, with what to do, and ends with 4. With RUNG, that one alone.
    """
    from launch.commands import check as check_command

    if climb is not None:
        if rung is not None:
            raise click.UsageError(f"--climb is a check of its own: leave out {rung}")
        from launch.checks.climb import climb as climb_on

        climber = Request(**options | {"profile": climb})
        end_with(
            lambda console, _: climb_on(
                climber, console, os.environ, as_json=as_json, timeout_s=timeout_s
            )
        )
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


@airlock.command("try")
@click.argument("run", metavar="RUN")
@click.argument("prompt", required=False)
@click.option("--beside-base", is_flag=True, help="Let the model as it was before answer as well.")
@click.option("--system", default="", metavar="TEXT", help="A system message to begin with.")
@click.option(
    "--raw", "is_raw", is_flag=True, help="Continue the prompt as text, without the chat template."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of new tokens.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0: the likeliest token, the same answer each time.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "mps", "cpu"]),
    default="auto",
    show_default=True,
    help="Device that answers.",
)
def try_(run: str, prompt: str | None, *, beside_base: bool, device: str, **options: Any) -> None:
    """Talk to the model that RUN has trained, or let it answer PROMPT and end."""
    from launch.commands import try_model

    end_with(
        lambda *_: try_model.try_model(
            run, prompt, os.environ, beside_base=beside_base, device=device, sampling=options
        )
    )


@airlock.command()
@click.argument("run", metavar="RUN")
@click.argument("repo", metavar="OWNER/NAME")
@click.option(
    "--public", "is_public", is_flag=True, help="Make the repository public; else it is private."
)
@click.option("--adapter", "is_adapter", is_flag=True, help="Upload the adapters alone.")
@click.option("--replace", "replaces", is_flag=True, help="Replace what OWNER/NAME holds now.")
def push(run: str, repo: str, **options: bool) -> None:
    """Upload the model that RUN has trained, with its card, to the Hugging Face Hub."""
    from launch.commands import push_model

    end_with(lambda *_: push_model.push_model(run, repo, os.environ, **options))


@airlock.command()
def ps() -> None:
    """Show your runs on this machine, with their processes; those of dead runs as well."""
    from launch.live import stop as launch_stop

    end_with(lambda console, _: launch_stop.show(console))


@airlock.command()
@click.argument("run", metavar="RUN", required=False)
def attach(run: str | None) -> None:
    """Show RUN as its own terminal does, until it ends; Ctrl-C leaves it running.

    By default the one run that goes on; of one that is over, its end. Exits as the run does.
    """
    from launch.commands.attach import attach as attach_to

    end_with(lambda console, output: attach_to(run, console, output))


@airlock.command()
@click.argument("run", metavar="RUN", required=False)
def stop(run: str | None) -> None:
    """End exactly one RUN: it saves and ends; of a dead one, what it has left is ended."""
    from launch.live import stop as launch_stop

    end_with(lambda console, _: launch_stop.stop(run, console))


@airlock.command()
@click.argument("run", metavar="RUN")
@click.option("--to", "service", metavar="NAME", help="Send it to wandb or trackio instead.")
def track(run: str, service: str | None) -> None:
    """Write a run's TensorBoard files anew, from what it has measured."""
    from launch.track.tracking_process import track as track_run

    end_with(lambda console, _: track_run(run, service, console))
