"""The commands that control a live run, as click knows them: launch/live carries them out."""

from __future__ import annotations

import click

from machine.processes.output import end_with
from rundir.control import CHANGEABLE, MOST_TRACED_STEPS

_RUN = click.argument("run", metavar="RUN")
_TIMEOUT = click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the run's answer; what was asked for stands all the same.",
)


@click.command()
@_RUN
@click.option("--release", is_flag=True, help="Save and end instead, and say what goes on.")
@_TIMEOUT
def pause(run: str, *, release: bool, timeout_s: float) -> None:
    """Have RUN wait after its next step; it keeps its GPUs and memory.

    Its losses are those of a run without a pause.
    """
    from launch.live import control_run

    end_with(
        lambda console, _: control_run.pause(run, console, timeout_s=timeout_s, release=release)
    )


@click.command()
@_RUN
@_TIMEOUT
def resume(run: str, *, timeout_s: float) -> None:
    """Have a paused RUN go on; one that has ended goes on with ./start.sh PROFILE --resume RUN."""
    from launch.live import control_run

    end_with(lambda console, _: control_run.resume(run, console, timeout_s=timeout_s))


@click.command()
@_RUN
@_TIMEOUT
def save(run: str, *, timeout_s: float) -> None:
    """Have RUN save a checkpoint after its next step, and go on."""
    from launch.live import control_run

    end_with(lambda console, _: control_run.once(run, "save", "", console, timeout_s=timeout_s))


@click.command(
    "set",
    help="Change settings of RUN for its further steps. These can change: "
    f"{', '.join(CHANGEABLE)}.",
)
@_RUN
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@_TIMEOUT
def set_(run: str, settings: tuple[str, ...], *, timeout_s: float) -> None:
    from launch.live import control_run

    end_with(lambda console, _: control_run.change(run, settings, console, timeout_s=timeout_s))


@click.command()
@_RUN
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_TRACED_STEPS),
    default=3,
    show_default=True,
    help="Number of steps to record.",
)
@_TIMEOUT
def trace(run: str, *, steps: int, timeout_s: float) -> None:
    """Have all ranks of RUN record their next steps with torch's profiler, and go on.

    Writes a file for each rank into its folder traces/, for https://ui.perfetto.dev, and shows the
    ten longest operations.
    """
    from launch.live import trace_run

    end_with(lambda console, _: trace_run.trace(run, steps, console, timeout_s=timeout_s))


COMMANDS = (pause, resume, save, set_, trace)
