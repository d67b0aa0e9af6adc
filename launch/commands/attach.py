"""`airlock attach RUN`: the live view of a run from another terminal, from its folder alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import fields

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringCommand
from launch.live.live_run import run_called
from launch.run.supervise.console import LiveView, is_routine
from launch.run.supervise.workload import LogTail
from machine.processes.output import Output, end_with
from machine.processes.runs import OVER, all_runs
from machine.processes.signals import Signals
from machine.typed import console_program, ls_runs
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.events import RunEvents
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir
from rundir.status import RankStatus, Status, read_status
from state.run_state import RunState

_POLL_S = 0.2
_LOOK_FOR_OWNER_S = 1.0
_CONTEXT_BYTES = 64 * 1024
_NUM_CONTEXT, _NUM_END = 10, 60  # lines, of a run that goes on and of one that is over


@click.command(cls=AnsweringCommand)
@click.argument("run", metavar="RUN", required=False)
def attach(run: str | None) -> None:
    """Show RUN as its own terminal does, until it ends; Ctrl-C leaves it running.

    By default the one run that goes on; of one that is over, its end. Exits as the run does.
    """
    end_with(lambda console, output: _attach(run, console, output))


def _attach(name: str | None, console: Console, output: Output) -> ExitCode:
    """Show a run until it ends, and return its exit code; Ctrl-C leaves it running.

    Without a name it is the one run that goes on. Raises UserError if there is no such run, if
    several could be meant, or if its launcher has died.
    """
    run = run_called(name) if name is not None else _only_live_run()
    signals = Signals.listening()
    output.on_reader_gone = signals.ask_to_stop
    return _Attached(run, console, signals).to_its_end()


def _only_live_run() -> RunDir:
    live = [run for run in all_runs() if run.launcher is not None]
    if len(live) == 1:
        return live[0].run
    if not live:
        raise UserError(
            "no run of yours goes on here",
            do=f"{console_program()} attach RUN   # one that is over, or elsewhere: {ls_runs()}",
        )
    each = [f"{console_program()} attach {processes.called}" for processes in live]
    raise UserError(f"{len(live)} runs go on here", do="\n  → ".join(each))


class _Attached:
    """A view of one run, whose folder is only read."""

    def __init__(self, run: RunDir, console: Console, signals: Signals) -> None:
        self._run, self._console, self._signals = run, console, signals
        self._log = LogTail(run.run_log, from_end_bytes=_CONTEXT_BYTES)
        self._events = RunEvents(run.events)
        self._state = RunState(_status_of(run) or Status(run_id=run.run_id, profile=""))
        self._state.started_mono -= max(0.0, time.time() - self._state.status.started_t)
        with contextlib.suppress(OSError, ValueError):
            self._state.of_script = read_config(run.config).script is not None
        self._view: LiveView | None = None

    def to_its_end(self) -> ExitCode:
        """Show what has been said last, then the run as it goes on, then its report."""
        is_over = self._state.status.phase in OVER and not is_owned(self._run)
        self._say_context(_NUM_END if is_over else _NUM_CONTEXT)
        if not is_over:
            self._greet()
            try:
                self._follow()
            finally:
                if self._view is not None:
                    self._view.close()
        if self._signals.stop_asked:
            return self._left()
        return self._ended()

    def _say_context(self, num_lines: int) -> None:
        lines = self._new_lines()
        self._say(lines[-num_lines:])
        if not lines:
            self._say([f"{self._run.run_log} has no lines"])

    def _greet(self) -> None:
        phase = self._state.status.phase
        self._say([f"airlock: attached to {self._run.run_id}, {phase}; Ctrl-C leaves it running"])
        if self._console.is_terminal and not self._state.of_script:
            self._view = LiveView(self._console)

    def _follow(self) -> None:
        """Show the run until nobody owns it any more, or until somebody leaves this view."""
        next_look = 0.0
        while not self._signals.stop_asked:
            has_owner = True
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_FOR_OWNER_S
                has_owner = is_owned(self._run)
            self._show()
            if not has_owner:
                return
            time.sleep(_POLL_S)

    def _show(self) -> None:
        """Show what is new: lines above, and the state below them."""
        for event in self._events.new_events():
            with contextlib.suppress(KeyError, TypeError):  # of another version of Airlock
                self._state.add(event)
        self._state.status = _status_of(self._run) or self._state.status
        lines = self._new_lines()
        if self._view is None:
            self._say(lines)
            return
        self._say([line for line in lines if not is_routine(line)])
        self._view.draw(self._state)

    def _new_lines(self) -> list[str]:
        new: list[str] = []
        while (lines := self._log.new_lines()) is not None:
            new += lines
        return new

    def _left(self) -> ExitCode:
        name = self._run.run_id
        self._say(
            [
                f"airlock: left {name}, which goes on",
                f"  → {console_program()} attach {name}   # shows it again",
                f"  → {console_program()} stop {name}   # ends it: it saves first",
            ]
        )
        return ExitCode.DONE

    def _ended(self) -> ExitCode:
        """Return the exit code of the run. Raises UserError if it has ended without one."""
        self._say(self._new_lines())
        status = _status_of(self._run)
        if status is not None and status.exit_code is not None:
            return ExitCode(status.exit_code)
        if status is None and not self._run.path.exists():
            raise UserError(f"{self._run.path} is gone", do=f"{console_program()} ps")
        raise UserError(
            f"run {self._run.run_id} is dead: its launcher has ended without a word "
            f"({owner_of(self._run) or 'nobody knows who it was'})",
            do=f"{console_program()} doctor {self._run.run_id}",
            code=ExitCode.RANK_FAILED,
        )

    def _say(self, lines: Sequence[str]) -> None:
        if lines:
            self._console.out("\n".join(lines))


def _status_of(run: RunDir) -> Status | None:
    """Return the status of `run`; None if there is none yet, or any more."""
    try:
        known_status = read_status(run)
        known = {field_.name for field_ in fields(Status)}
        status = Status(**{name: value for name, value in known_status.items() if name in known})
        own = {field_.name for field_ in fields(RankStatus)}
        status.ranks = [
            RankStatus(**{name: value for name, value in row.items() if name in own})
            for row in known_status["ranks"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return status
