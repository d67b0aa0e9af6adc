"""`--on-event CMD`: a command that is told when the run ends, fails or hangs; it harms nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from launch.run.supervise import facts_command
from launch.run.supervise.notices import (
    NOTICES,
    Facts,
    common_facts,
    facts_of_end,
    facts_of_failure,
    masked,
)
from machine.processes.descendants import OwnProcesses
from machine.processes.signals import Signals
from rundir.errors import ExitCode
from rundir.events import Event
from rundir.masking import mask_of
from rundir.paths import RunDir
from state.run_state import RunState

TIMEOUT_S = 30.0  # for one call of the command
END_S = 40.0  # for all that are left at the end of the run
_MOST_WAITING = 20  # events; the oldest are left out
_POLL_S = 0.05
_SILENT_S = 5.0  # a longer wait is announced
_OVER = (ExitCode.DONE, ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED)


class OnEvent:
    """The calls of one command, one after the other, beside the run; without one, nothing."""

    def __init__(
        self,
        run: RunDir,
        state: RunState,
        command: str,
        processes: OwnProcesses,
        console: Console,
    ) -> None:
        self._run, self._state, self._command = run, state, command.strip()
        self._processes, self._console = processes, console
        self._mask = mask_of(run)
        self._waiting: deque[Facts] = deque(maxlen=_MOST_WAITING)
        self._call: _Call | None = None

    def look(self, events: Iterable[Event]) -> None:
        """Take in new events of the run, and go on with the calls; never waits."""
        if not self._command:
            return
        for event in events:
            if notice := NOTICES.get((event["kind"], event["name"])):
                self._add(notice.name, notice.facts(event))
        self._go_on()

    def end_of_run(self, signals: Signals) -> None:
        """Tell of the end as the state of the run has it."""
        code = self._state.status.exit_code
        self.end(ExitCode(ExitCode.RANK_FAILED if code is None else code), signals)

    def end(self, code: ExitCode, signals: Signals) -> None:
        """Tell of the end, wait for the calls that are left, and end those that take too long.

        Another stop while it waits ends them at once.
        """
        if not self._command:
            return
        if code not in _OVER:
            self._add("failure", facts_of_failure(self._run, self._state))
        seconds = time.monotonic() - self._state.started_mono
        self._add("end", facts_of_end(code, seconds, self._run, self._state))
        was_asked, started, has_said = signals.stop_asked, time.monotonic(), False
        while self._go_on():
            if signals.end_now or (signals.stop_asked and not was_asked):
                break
            waited_s = time.monotonic() - started
            if waited_s > END_S:
                break
            if not has_said and waited_s > _SILENT_S:
                has_said = True
                self._say(f"waiting for --on-event, {END_S:.0f} s at most; Ctrl-C ends that")
            time.sleep(_POLL_S)
        if self._call is not None:
            self._say(f"--on-event is not done with {self._call.name!r}, and is ended")
            self._call.kill()
            self._processes.take_back(self._call.pid)
            self._call = None
        if self._waiting:
            names = ", ".join(repr(facts["event"]) for facts in self._waiting)
            self._say(f"--on-event is not told of {names}: it took too long before")
            self._waiting.clear()

    def _add(self, name: str, facts: Facts) -> None:
        about = common_facts(name, self._run, self._state) | {"t": time.time()} | facts
        self._waiting.append(masked(about, self._mask))

    def _go_on(self) -> bool:
        """Report a call that has ended, and start the next; return whether there is any."""
        if self._call is not None:
            if not self._call.has_ended():
                return True
            self._processes.take_back(self._call.pid)
            if problem := self._call.problem():
                self._say(self._mask.text(problem))
            self._call = None
        if not self._waiting:
            return False
        facts = self._waiting.popleft()
        try:
            self._call = _Call(self._command, facts)
        except OSError as error:  # no process or memory to be had
            self._say(f"--on-event cannot be run: {error.strerror}; the run goes on")
            return bool(self._waiting)
        self._processes.set_apart(self._call.pid)
        return True

    def _say(self, text: str) -> None:
        self._console.out(f"airlock: {text}")


class _Call:
    """One call of the command, by a process that ends it after TIMEOUT_S or with this one."""

    def __init__(self, command: str, facts: Facts) -> None:
        self.name = str(facts["event"])
        data = (json.dumps(facts) + "\n").encode()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(facts_command.__file__)),
                str(TIMEOUT_S),
                command,
            ],
            env=os.environ | {"AIRLOCK_EVENT": self.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        with contextlib.suppress(OSError):  # it has died already, and is reported as such
            self._process.stdin.write(f"{len(data)}\n".encode() + data)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The pid of the process that attends to the command."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return whether the call is over."""
        return self._process.poll() is not None

    def problem(self) -> str:
        """Return what went wrong in a call that has ended, in one line; "" if nothing."""
        text, _ = self._process.communicate()
        try:
            result = json.loads(text)
        except ValueError:
            result = {"code": self._process.returncode, "is_late": False, "last": ""}
        last = next((line for line in reversed(result["last"].splitlines()) if line.strip()), "")
        last_words = f": {' '.join(last.split())[:200]}" if last else ""
        if result["is_late"]:
            return f"--on-event was not done with {self.name!r} in {TIMEOUT_S:.0f} s, and is ended"
        if result["code"]:
            return f"--on-event ended with {result['code']} for {self.name!r}{last_words}"
        return ""

    def kill(self) -> None:
        """End the call: the process that attends to it ends the command's whole group."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
