"""`airlock trace RUN`: have the ranks record some steps, and show what took longest."""

from __future__ import annotations

import shlex

import click
from rich.console import Console

from launch.commands.controls import RUN, TIMEOUT
from launch.commands.unknown_words import AnsweringCommand
from launch.live.live_run import LiveRun
from machine.processes.output import with_console
from machine.typed import console_program
from rundir.control import MOST_TRACED_STEPS
from rundir.errors import ExitCode, UserError
from rundir.events import Event
from rundir.paths import shown


@click.command(cls=AnsweringCommand)
@RUN
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_TRACED_STEPS),
    default=3,
    show_default=True,
    help="Number of steps to record.",
)
@TIMEOUT
@with_console
def trace(console: Console, run: str, *, steps: int, timeout_s: float) -> None:
    """Have all ranks of RUN record their next steps with torch's profiler, and go on.

    Writes a file for each rank into its folder traces/, for https://ui.perfetto.dev, and shows the
    ten longest operations.
    """
    live = LiveRun(run, console, timeout_s)
    live.check_has_steps()
    attempt, again = live.attempt, f"trace {live.run.run_id} --steps {steps}"
    answer = live.answer(live.ask("profile", str(steps)))
    live.check_done(answer)
    live.say(answer["said"])
    if live.phase == "paused":
        live.say(f"once it goes on: {console_program()} resume {live.run.run_id}")
        return
    by_rank: dict[int, Event] = {}
    while len(by_rank) < live.num_ranks:
        event = live.first_unless(
            lambda event: event["name"] == "trace" and event["step"] == answer["step"],
            lambda: live.attempt != attempt,
        )
        if event is None:
            raise live.lost(again)
        by_rank[event["rank"]] = event
    _show(live, [by_rank[rank] for rank in sorted(by_rank)])


def _show(live: LiveRun, traces: list[Event]) -> None:
    written = [event for event in traces if event["file"] is not None]
    for event in traces:
        if event["file"] is None:
            live.say(f"rank {event['rank']} has no trace: {event['why']}")
        else:
            file = shown(live.run.path / event["file"])
            live.console.out(f"  rank {event['rank']}: {file}")
    if not written:
        raise UserError(
            f"no rank of {live.run.run_id} could write a trace; its training goes on",
            do=f"df -h {shlex.quote(str(live.run.path))}",
            code=ExitCode.RANK_FAILED,
        )
    longest = f"longest on rank {written[0]['rank']}:\n{written[0]['table']}"
    live.console.out(f"{longest}\n  → open a file at https://ui.perfetto.dev")
