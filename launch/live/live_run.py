"""A run that is to be controlled: whether it can be, and its answers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from rich.console import Console

from machine.processes.runs import OVER, phase_of, status_of
from machine.typed import console_program, ls_runs, typed_run
from rundir import control
from rundir.checkpoints import complete_checkpoints
from rundir.config_file import is_of_script, read_config
from rundir.control import ControlRequest
from rundir.errors import ExitCode, UserError
from rundir.events import Event, EventTail
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir, find_run
from rundir.pulse import read_pulse

_POLL_S = 0.1
_LOOK_EVERY_S = 1.0  # at whether the run is still alive
_GRACE_S = 3.0  # after the last step: an answer may be on its way
_STEADY_LOOKS = 1  # a status is written twice a second: what the next look sees is no remnant

# The command of each request, to be typed again.
_COMMANDS = {
    "save": "save {}",
    "evaluate": "evaluate --live {}",
    "set": "set {} {}",
    "profile": "trace {} --steps {}",
}

# What each phase of the ranks is doing, and what the answer therefore waits for.
_BEFORE = {
    "preparing": "model and data are being prepared",
    "starting": "the ranks are starting",
    "paused": "it is paused",
}
_AT = {
    "eval": "it evaluates",
    "checkpoint": "it saves a checkpoint",
    "export": "it writes the model",
    "trace": "it writes a trace",
}


def run_called(name: str) -> RunDir:
    """Return the run called `name`. Raises UserError if there is none."""
    try:
        return find_run(name)
    except ValueError as error:
        do = f"{console_program()} ps   # shows what is going on; all: {ls_runs()}"
        raise UserError(str(error), do=do) from error


class LiveRun:
    """A live run of our trainer, with the answers that come from now on."""

    def __init__(self, name: str, console: Console, timeout_s: float) -> None:
        """Find the run. Raises UserError if there is none, or none that can be controlled."""
        self.console, self._timeout_s = console, timeout_s
        self.run = run_called(name)
        self.check()
        self._tails: dict[int, EventTail] = {}
        for rank in range(self.num_ranks):
            self._tails[rank] = EventTail(self.run.event_file(f"rank{rank}"), from_end=True)
        self._seen: list[Event] = []

    @property
    def phase(self) -> str:
        """The phase in the run's status; "" without one."""
        return phase_of(self.run)

    @property
    def num_ranks(self) -> int:
        """How many ranks it has; 1 before its first status."""
        return len(status_of(self.run).get("ranks", [None]))

    @property
    def attempt(self) -> int:
        """How often its ranks have been started again."""
        return int(status_of(self.run).get("attempt", 0))

    def say(self, text: str) -> None:
        """Print one or more lines about the run."""
        self.console.out(f"{self.run.run_id}: {text}")

    def check(self) -> None:
        """Raise UserError if the run is over, dead, about to end, or of a script."""
        run, phase, program = self.run, self.phase, console_program()
        if phase in OVER:
            goes_on = phase != "done" and bool(complete_checkpoints(run.checkpoints))
            do = go_on_command(run) if goes_on else f"{program} ps"
            raise UserError(f"run {run.run_id} is over: {phase}", do=do)
        if not is_owned(run) and self.phase not in OVER:  # it may have ended meanwhile
            was = owner_of(run)
            who = f" ({was})" if was else ""
            raise UserError(
                f"run {run.run_id} is dead: its launcher has ended without a word{who}",
                do=f"{program} doctor {run.run_id}",
            )
        if is_of_script(run.config):
            raise UserError(
                f"run {run.run_id} is of a script, whose steps Airlock does not know: only "
                "training by a profile can be controlled. Nor is kill -STOP a pause: collectives "
                "of the ranks time out",
                do=f"{program} stop {run.run_id}   # the script has 30 seconds to save and end",
            )
        if phase == "stopping":
            raise UserError(f"run {run.run_id} is stopping: it saves and ends", do=f"{program} ps")

    def check_has_steps(self) -> None:
        """Raise UserError if the run has trained its last step."""
        if self.phase == "finishing":
            raise self.no_steps_left()

    def check_done(self, answer: Event) -> None:
        """Raise UserError if `answer` is a refusal."""
        if not answer["done"]:
            raise UserError(
                f"run {self.run.run_id}: {answer['said']}", do=f"{console_program()} ps"
            )

    def ask(self, request: control.Request, value: str) -> ControlRequest:
        """Make a request that is answered once. Raises UserError."""
        try:
            return control.ask_once(self.run, request, value)
        except OSError as error:
            raise self.not_writable(error) from error

    def not_writable(self, error: OSError) -> UserError:
        """Return the error for a folder of requests that cannot be written."""
        folder = shlex.quote(str(self.run.control))
        return UserError(
            f"{self.run.control} cannot be written: {error.strerror}",
            do=f"df -h {folder}; ls -ld {folder}",
        )

    def answer(self, asked: ControlRequest) -> Event:
        """Wait for the answer to a request; return it. Raises UserError as `first_unless` does."""
        attempt = self.attempt

        def is_answer(event: Event) -> bool:
            return event["name"] == "control" and asked.id in event["ids"]

        def is_lost() -> bool:
            is_taken = not (self.run.control / asked.name).exists()
            return is_taken and self.attempt != attempt

        try:
            if event := self.first_unless(is_answer, is_lost):
                return event
            raise self.lost(_COMMANDS[asked.request].format(self.run.run_id, asked.value))
        except UserError:
            if self.phase in (*OVER, "finishing", "stopping") or not is_owned(self.run):
                control.withdraw(self.run, asked.name)
            raise

    def first_unless(
        self, is_answer: Callable[[Event], bool], is_settled: Callable[[], bool]
    ) -> Event | None:
        """Wait for the first new event of the ranks that `is_answer` accepts.

        Returns None if `is_settled` holds for a while and no such event comes. Says what the run
        does meanwhile. Raises UserError if the run ends, dies or has no steps left, or the time is
        up; what was asked for stands then.
        """
        deadline = time.monotonic() + self._timeout_s
        next_look, num_settled = time.monotonic() + _LOOK_EVERY_S, 0
        self._last_said, self._no_steps_since = "", 0.0
        while time.monotonic() < deadline:
            for tail in self._tails.values():
                self._seen += tail.new_events()
            while self._seen:
                if is_answer(event := self._seen.pop(0)):
                    return event
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_EVERY_S
                num_settled = num_settled + 1 if is_settled() else 0
                if num_settled > _STEADY_LOOKS:
                    return None
                self._look(may_be_settled=num_settled > 0)
            time.sleep(_POLL_S)
        raise UserError(
            f"run {self.run.run_id} has not answered within {self._timeout_s:g} s: "
            f"{self._doing() or 'it is between two answers'}. What was asked for stands, and is "
            "done after its next step",
            do=f"{console_program()} doctor {self.run.run_id}   # whether it makes progress",
            code=ExitCode.RANK_FAILED,
        )

    def _look(self, *, may_be_settled: bool) -> None:
        """Look for ranks that have just begun; say what the run does. Raises UserError at its end.

        If the matter `may_be_settled` by another command, this one does not wait, it seems.
        """
        for rank in range(self.num_ranks):
            if rank not in self._tails:
                self._tails[rank] = EventTail(self.run.event_file(f"rank{rank}"))
        has_steps = self.phase not in (*OVER, "finishing", "stopping")
        if not (has_steps and is_owned(self.run)):
            self._no_steps_since = self._no_steps_since or time.monotonic()
            if time.monotonic() - self._no_steps_since > _GRACE_S:
                self.check()
                raise self.no_steps_left()
        doing = "" if may_be_settled else self._doing()
        if doing and doing != self._last_said:
            self._last_said = doing
            self.say(f"waits for its next step: {doing}")

    def lost(self, again: str) -> UserError:
        """Return the error for a request that ended with the ranks; `again` makes it once more."""
        return UserError(
            f"the ranks of run {self.run.run_id} were started again before they had answered",
            do=f"{console_program()} {again}",
            code=ExitCode.RANK_FAILED,
        )

    def no_steps_left(self) -> UserError:
        """Return the error for a run that has trained its last step."""
        return UserError(
            f"run {self.run.run_id} has trained all its steps: it evaluates, saves and exports",
            do=f"{console_program()} ps   # shows when it is over",
        )

    def _doing(self) -> str:
        """Return what keeps the run from its next step, as far as is known."""
        phase = self.phase
        if phase in _BEFORE:
            return _BEFORE[phase]
        pulse = read_pulse(self.run.pulse(0))
        return _AT.get(pulse.phase, "") if pulse else ""


def go_on_command(run: RunDir) -> str:
    """Return the command that goes on from the run's last checkpoint."""
    return typed_run(run, read_config(run.config).profile).resumed(run)
