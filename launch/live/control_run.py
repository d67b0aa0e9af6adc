"""`airlock pause`, `resume`, `save`, `evaluate --live`, `set`: ask a live run; say what it did.

Each waits until the ranks have answered together, between two of their steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from launch.live import stop as stopping
from launch.live.live_run import LiveRun, go_on_command
from machine.typed import console_program
from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import Event
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.status import read_status

_BEFORE_STEPS = ("", "preparing", "starting")
_LATE_S = 3.0  # after which a status that still says otherwise is right


def pause(name: str, console: Console, *, timeout_s: float, release: bool = False) -> None:
    """Have the run wait after its next step, or, with `release`, save and end. Raises UserError."""
    live = LiveRun(name, console, timeout_s)
    if release:
        _release(live, console)
        return
    if live.phase == "finishing":
        raise live.no_steps_left()
    try:
        control.ask(live.run, "pause")
    except OSError as error:
        raise live.not_writable(error) from error

    def is_it(event: Event) -> bool:
        return event["name"] == "control" and event["request"] in ("pause", "resume")

    def is_settled() -> bool:  # by another command, whose answer came before this one listened
        return live.phase == "paused" or not control.is_asked(live.run, "pause")

    try:
        answer = live.first_unless(is_it, is_settled)
    except KeyboardInterrupt:
        live.say(f"will pause after its next step all the same{_how_to_go_on(live.run)}")
        raise
    if answer is not None:
        _tell(live, answer, more=_how_to_go_on(live.run))
    elif control.is_asked(live.run, "pause"):
        live.say(f"is paused already, after step {_step(live.run)}{_how_to_go_on(live.run)}")
    else:
        raise UserError(
            f"run {live.run.run_id} will not pause: another command had it go on meanwhile",
            do=f"{console_program()} pause {live.run.run_id}",
        )


def resume(name: str, console: Console, *, timeout_s: float) -> None:
    """Have a paused run go on. Raises UserError."""
    live = LiveRun(name, console, timeout_s)
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

    def is_settled() -> bool:  # by another command
        return live.phase != "paused" or control.is_asked(live.run, "pause")

    answer = live.first_unless(lambda event: _is_of(event, "resume"), is_settled)
    if answer is not None:
        _tell(live, answer)
    elif control.is_asked(live.run, "pause"):
        live.say("stays paused: another command asked for that meanwhile")
    else:
        live.say(f"is not paused any more: it is {live.phase}")


def once(
    name: str, request: control.Request, value: str, console: Console, *, timeout_s: float
) -> None:
    """Have the run do something once, between two steps. Raises UserError."""
    live = LiveRun(name, console, timeout_s)
    if live.phase == "finishing":
        raise live.no_steps_left()
    _tell(live, live.answer(live.ask(request, value)))


def change(name: str, settings: Sequence[str], console: Console, *, timeout_s: float) -> None:
    """Change settings of a live run, for its further steps. Raises UserError."""
    live = LiveRun(name, console, timeout_s)
    train = read_config(live.run.config).train
    for setting in settings:
        try:
            train, _ = control.changed(train, setting)
        except ValueError as error:
            do = f"{console_program()} set {live.run.run_id} {control.CHANGEABLE[0]}=1"
            raise UserError(str(error), do=do) from error
    if live.phase == "finishing":
        raise live.no_steps_left()
    asked = [live.ask("set", setting) for setting in settings]
    for request in asked:
        _tell(live, live.answer(request))


def _tell(live: LiveRun, answer: Event, more: str = "") -> None:
    """Print an answer. Raises UserError if it is a refusal."""
    if not answer["done"]:
        raise UserError(f"run {live.run.run_id}: {answer['said']}", do=f"{console_program()} ps")
    live.say(f"{answer['said']}{more}")


def _is_of(event: Event, request: str) -> bool:
    return (event["name"], event.get("request")) == ("control", request)


def _turns_out_paused(live: LiveRun) -> bool:
    """Return whether the run has paused although its status does not say so yet."""
    deadline = time.monotonic() + _LATE_S
    while time.monotonic() < deadline:
        if live.phase == "paused":
            return True
        time.sleep(0.1)
    return False


def _how_to_go_on(run: RunDir) -> str:
    return f"\n  → {console_program()} resume {run.run_id}"


def _step(run: RunDir) -> int:
    return int(read_status(run)["step"])


def _release(live: LiveRun, console: Console) -> None:
    run = live.run
    if live.phase in _BEFORE_STEPS:
        raise UserError(
            f"run {run.run_id} has nothing to save yet: it is {live.phase or 'starting'}",
            do=f"{console_program()} stop {run.run_id}   # ends it",
        )
    stopping.stop(run.run_id, console)
    if not complete_checkpoints(run.checkpoints):
        raise UserError(
            f"run {run.run_id} has ended, and nothing was saved",
            do=f"{console_program()} doctor {run.run_id}",
            code=ExitCode.INTERRUPTED_UNSAVED,
        )
    go_on = go_on_command(run)
    console.out(f"its memory and devices are free; it goes on with\n  → {go_on}", highlight=False)
