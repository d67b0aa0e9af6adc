"""`airlock pause`, `resume`, `save` and `set`: ask a live run, and say what it has done.

Each waits until the ranks have answered together, between two of their steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringCommand
from launch.live import stop as stopping
from launch.live.live_run import LiveRun, go_on_command
from machine.processes.output import with_console
from machine.typed import console_program
from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.events import Event
from rundir.status import read_status

_BEFORE_STEPS = ("", "preparing", "starting")
_LATE_S = 3.0  # after which a status that still says otherwise is right

RUN = click.argument("run", metavar="RUN")
TIMEOUT = click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the run's answer; what was asked for stands all the same.",
)


@click.command(cls=AnsweringCommand)
@RUN
@click.option("--release", is_flag=True, help="Save and end instead, and say what goes on.")
@TIMEOUT
@with_console
def pause(console: Console, run: str, *, release: bool, timeout_s: float) -> None:
    """Have RUN wait after its next step; it keeps its GPUs and memory.

    Its losses are those of a run without a pause.
    """
    live = LiveRun(run, console, timeout_s)
    if release:
        _release(live)
        return
    live.check_has_steps()
    try:
        control.ask(live.run, "pause")
    except OSError as error:
        raise live.not_writable(error) from error

    def is_answer(event: Event) -> bool:
        return event["name"] == "control" and event["request"] in ("pause", "resume")

    def is_settled() -> bool:  # by another command, whose answer came before this one listened
        return live.phase == "paused" or not control.is_asked(live.run, "pause")

    go_on = f"\n  → {console_program()} resume {live.run.run_id}"
    try:
        answer = live.first_unless(is_answer, is_settled)
    except KeyboardInterrupt:
        live.say(f"will pause after its next step all the same{go_on}")
        raise
    if answer is not None:
        _say_answer(live, answer, more=go_on)
    elif control.is_asked(live.run, "pause"):
        live.say(f"is paused already, after step {read_status(live.run)['step']}{go_on}")
    else:
        raise UserError(
            f"run {live.run.run_id} will not pause: another command had it go on meanwhile",
            do=f"{console_program()} pause {live.run.run_id}",
        )


@click.command(cls=AnsweringCommand)
@RUN
@TIMEOUT
@with_console
def resume(console: Console, run: str, *, timeout_s: float) -> None:
    """Have a paused RUN go on; one that has ended goes on with ./start.sh PROFILE --resume RUN."""
    live = LiveRun(run, console, timeout_s)
    try:
        was_asked = control.withdraw(live.run, "pause")
    except OSError as error:
        raise live.not_writable(error) from error
    if not was_asked and live.phase != "paused":
        live.say(f"is not paused: it is {live.phase}")
        return
    if live.phase != "paused" and not _turns_out_paused(live):
        live.say("was not paused yet, and will not be")
        return

    def is_answer(event: Event) -> bool:
        return (event["name"], event.get("request")) == ("control", "resume")

    def is_settled() -> bool:  # by another command
        return live.phase != "paused" or control.is_asked(live.run, "pause")

    answer = live.first_unless(is_answer, is_settled)
    if answer is not None:
        _say_answer(live, answer)
    elif control.is_asked(live.run, "pause"):
        live.say("stays paused: another command asked for that meanwhile")
    else:
        live.say(f"is not paused any more: it is {live.phase}")


@click.command(cls=AnsweringCommand)
@RUN
@TIMEOUT
@with_console
def save(console: Console, run: str, *, timeout_s: float) -> None:
    """Have RUN save a checkpoint after its next step, and go on."""
    ask_once(LiveRun(run, console, timeout_s), "save")


@click.command(
    "set",
    cls=AnsweringCommand,
    help="Change settings of RUN for its further steps. These can change: "
    f"{', '.join(control.CHANGEABLE)}.",
)
@RUN
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@TIMEOUT
@with_console
def set_(console: Console, run: str, settings: tuple[str, ...], *, timeout_s: float) -> None:
    change(LiveRun(run, console, timeout_s), settings)


def _turns_out_paused(live: LiveRun) -> bool:
    """Return whether the run has paused although its status does not say so yet."""
    deadline = time.monotonic() + _LATE_S
    while time.monotonic() < deadline:
        if live.phase == "paused":
            return True
        time.sleep(0.1)
    return False


def ask_once(live: LiveRun, request: control.Request) -> None:
    """Have the run do something once, between two steps."""
    live.check_has_steps()
    _say_answer(live, live.answer(live.ask(request, "")))


def change(live: LiveRun, settings: Sequence[str]) -> None:
    """Change settings of a live run, for its further steps."""
    train = read_config(live.run.config).train
    for setting in settings:
        try:
            train, _ = control.changed(train, setting)
        except ValueError as error:
            do = f"{console_program()} set {live.run.run_id} {control.CHANGEABLE[0]}=1"
            raise UserError(str(error), do=do) from error
    live.check_has_steps()
    for request in [live.ask("set", setting) for setting in settings]:
        _say_answer(live, live.answer(request))


def _say_answer(live: LiveRun, answer: Event, more: str = "") -> None:
    live.check_done(answer)
    live.say(f"{answer['said']}{more}")


def _release(live: LiveRun) -> None:
    run = live.run
    if live.phase in _BEFORE_STEPS:
        raise UserError(
            f"run {run.run_id} has nothing to save yet: it is {live.phase or 'starting'}",
            do=f"{console_program()} stop {run.run_id}   # ends it",
        )
    stopping.stop(run.run_id, live.console)
    if not complete_checkpoints(run.checkpoints):
        raise UserError(
            f"run {run.run_id} has ended, and nothing was saved",
            do=f"{console_program()} doctor {run.run_id}",
            code=ExitCode.INTERRUPTED_UNSAVED,
        )
    text = f"its memory and devices are free; it goes on with\n  → {go_on_command(run)}"
    live.console.out(text)
