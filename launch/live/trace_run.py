"""`airlock trace RUN`: have the ranks record some steps, and show what took longest."""

from __future__ import annotations

import shlex

from rich.console import Console

from launch.live.live_run import LiveRun
from machine.typed import console_program
from rundir.errors import UserError
from rundir.events import Event
from rundir.exit_codes import ExitCode
from rundir.paths import shown


def trace(name: str, num_steps: int, console: Console, *, timeout_s: float) -> None:
    """Record the next `num_steps` steps on all ranks; print rank 0's longest operations.

    Raises UserError if no rank could write a trace.
    """
    live = LiveRun(name, console, timeout_s)
    if live.phase == "finishing":
        raise live.no_steps_left()
    attempt, again = live.attempt, f"trace {live.run.run_id} --steps {num_steps}"
    answer = live.answer(live.ask("profile", str(num_steps)))
    if not answer["done"]:
        raise UserError(f"run {live.run.run_id}: {answer['said']}", do=f"{console_program()} ps")
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
    _show(live, [by_rank[rank] for rank in sorted(by_rank)], console)


def _show(live: LiveRun, traces: list[Event], console: Console) -> None:
    written = [event for event in traces if event["file"] is not None]
    for event in traces:
        if event["file"] is None:
            live.say(f"rank {event['rank']} has no trace: {event['why']}")
        else:
            console.out(
                f"  rank {event['rank']}: {shown(live.run.path / event['file'])}", highlight=False
            )
    if not written:
        raise UserError(
            f"no rank of {live.run.run_id} could write a trace; its training goes on",
            do=f"df -h {shlex.quote(str(live.run.path))}",
            code=ExitCode.RANK_FAILED,
        )
    console.out(f"longest on rank {written[0]['rank']}:\n{written[0]['table']}", highlight=False)
    console.out("  → open a file at https://ui.perfetto.dev", highlight=False)
