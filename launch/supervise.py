"""Watch one run: start the agent, follow its events, pass a stop on, leave no process behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time

from rich.console import Console

from launch import children
from launch.console import View, make_view
from launch.memory import tree_memory
from launch.processes import end_descendants
from launch.signals import Signals
from launch.state import RunState
from rundir import control
from rundir.config import LaunchConfig
from rundir.events import EventWriter, RunEvents
from rundir.paths import RunDir
from rundir.status import write_status

_POLL_S = 0.1
_STATUS_EVERY_S = 0.5
_MEMORY_SHARE = 0.02  # of the time may go into measuring memory, which walks page tables
_AGENT_GRACE_S = 5.0


class Supervisor:
    """Runs the agent of one run to its end."""

    def __init__(
        self, *, run: RunDir, config: LaunchConfig, state: RunState, console: Console,
        signals: Signals, events: EventWriter,
    ) -> None:  # fmt: skip
        self._run, self._config, self._state, self._console = run, config, state, console
        self._signals, self._events = signals, events
        self._incoming = RunEvents(run.events)
        self._stop_asked_at: float | None = None
        self._next_status = self._next_memory = 0.0

    def supervise(self, torchrun_args: list[str], env: dict[str, str]) -> int:
        """Start the agent with `torchrun_args`; returns its exit code once no process is left."""
        self._state.enter("starting")
        view = make_view(self._console)
        with self._run.agent_log.open("ab") as log:
            agent = children.start(
                "launch.agent", self._run.path, *torchrun_args, env=env, output=log
            )
        try:
            while agent.poll() is None:
                self._follow(view)
                self._pass_on_stop(agent)
                time.sleep(_POLL_S)
        finally:
            # Also when this loop fails: whatever happens here, the ranks do not outlive it.
            end_descendants()
            agent.wait()
            self._follow(view)
            view.close()
        return agent.returncode

    def _follow(self, view: View) -> None:
        """Take in new events, show them, and write the status and host memory when due."""
        events = self._incoming.new_events()
        for event in events:
            self._state.add(event)
        view.show(self._state, events)
        now = time.monotonic()
        if now >= self._next_memory:
            memory = tree_memory()
            self._events.emit("metric", "host", **memory)
            cost_s = time.monotonic() - now
            self._next_memory = now + max(1.0, cost_s / _MEMORY_SHARE)
        if now >= self._next_status:
            self._next_status = now + _STATUS_EVERY_S
            self.write_status()

    def write_status(self) -> None:
        """Write status.json now; a full disk is no reason to end a run."""
        self._state.status.updated_t = time.time()
        with contextlib.suppress(OSError):
            write_status(self._run, self._state.status)

    def _pass_on_stop(self, agent: subprocess.Popen[bytes]) -> None:
        """At first ask the ranks, who save; the second time, or with nothing to save, end them."""
        num_stops = self._signals.num_stops
        if num_stops == 0:
            return
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            is_training = self._state.status.phase in ("training", "finishing")
            self._state.enter("stopping")
            if not is_training:
                self._end(agent)
                return
            try:
                control.ask(self._run, "stop")
            except OSError:  # where no empty file can be made, no checkpoint can either
                self._end(agent)
                return
            self._console.out("stopping: the ranks save a checkpoint; Ctrl-C again ends at once")
        waited_s = time.monotonic() - self._stop_asked_at
        if num_stops > 1 or waited_s > self._config.stop_timeout_s:
            self._end(agent)

    @staticmethod
    def _end(agent: subprocess.Popen[bytes]) -> None:
        """End the agent and, through it, its ranks; `supervise` ends what is left of them."""
        agent.send_signal(signal.SIGTERM)
        try:
            agent.wait(_AGENT_GRACE_S)
        except subprocess.TimeoutExpired:
            agent.kill()
