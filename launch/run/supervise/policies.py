"""The policies of the supervisor, one for each matter: stop, lost ranks, a hang, a restart.

A policy keeps its own state and is called in every round of the supervisor's loop.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from launch.run.supervise.workload import Workload
from machine.gpus.gpu_samples import GpuSampler
from machine.processes.descendants import OwnProcesses, is_pid_alive, kill
from machine.processes.signals import Signals
from machine.typed import console_program
from rundir.config import LaunchConfig
from rundir.events import Event, EventWriter
from rundir.paths import RunDir
from rundir.units import clock_text
from state.hang import Hang, HangWatch
from state.run_state import RunState
from state.waits import Stall

_SURVIVORS_EVERY_S = 0.5
_SURVIVOR_GRACE_S = 2.0
_AGENT_GRACE_S = 5.0
_KILLED_S = 10.0  # a killed process that is still there waits in the kernel, for good perhaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A run under supervision: everything that policies look at and act on."""

    run: RunDir
    config: LaunchConfig
    state: RunState
    events: EventWriter
    processes: OwnProcesses
    workload: Workload
    console: Console
    signals: Signals
    gpus: GpuSampler

    def say(self, text: str) -> None:
        """Print one or more lines on the console."""
        self.console.out(text, highlight=False)

    def end_agent(self, agent: subprocess.Popen[bytes]) -> None:
        """End the agent and, through it, its ranks; the supervisor ends any that are left."""
        agent.send_signal(self.workload.end_signal)
        try:
            agent.wait(_AGENT_GRACE_S)
        except subprocess.TimeoutExpired:
            agent.kill()


class StopPolicy:
    """The stop policy: ask the ranks to save; asked again, or with nothing to save, end them."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._asked_at: float | None = None

    def pass_on(self, agent: subprocess.Popen[bytes]) -> None:
        """Pass on a stop: to the ranks at first, to the agent if they take too long."""
        watched, signals = self._watched, self._watched.signals
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            if said := watched.workload.ask_to_stop(agent, watched.state):
                watched.say(said)
            else:
                signals.end_now = True
            watched.state.enter("stopping")
        if time.monotonic() - self._asked_at > watched.config.stop_timeout_s:
            signals.end_now = True
        if signals.end_now:
            watched.end_agent(agent)


class RestartPolicy:
    """The restart policy: report a restart of all ranks before anything that they report."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._num_told = watched, 0

    def look(self) -> bool:
        """Report a restart that has not been reported yet; return whether there was one."""
        watched, num = self._watched, len(self._watched.state.restarts)
        if num == self._num_told:
            return False
        self._num_told = num
        attempt, cause = watched.state.status.attempt, watched.state.restarts[-1]
        limit = watched.config.max_restarts
        watched.events.begin_attempt(attempt)
        watched.events.emit("mark", "restart", cause=cause, num_restarts=attempt, of=limit)
        watched.say(f"airlock: {cause}: restart {attempt} of {limit}")
        return True


class SurvivorPolicy:
    """The survivor policy: end the other ranks if one they need is gone and the agent waits.

    The agent waits 30 s for ranks that do not die by SIGTERM, and forever when a rank ended early
    with 0. Once ranks are killed, the agent continues and reports them all.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._next_look = 0.0
        self._gone_since: float | None = None

    def restarted(self) -> None:
        """Note that all ranks are new: none of them is gone."""
        self._gone_since = None

    def look(self) -> None:
        """End the survivors if their time is up."""
        now, state = time.monotonic(), self._watched.state
        if now < self._next_look:
            return
        self._next_look = now + _SURVIVORS_EVERY_S
        rows = [row for row in state.status.ranks if row.pid is not None]
        if all(is_pid_alive(row.pid) for row in rows if row.pid is not None):
            return
        alive = {process.pid: process for process in self._watched.processes.alive()}
        gone = self._watched.workload.gone(state, alive)
        if not gone or not any(row.pid in alive for row in rows):
            return
        if self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since > _SURVIVOR_GRACE_S and not state.ended_by_us:
            self._watched.events.emit("error", "rank.gone", failed_rank=gone[0])
            for row in rows:
                if row.pid in alive:
                    state.ended_by_us.add(row.rank)
                    kill(alive[row.pid])


class HangPolicy:
    """The hang policy: find out who keeps the others waiting, report it, maybe end the ranks."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._hang_watch = HangWatch(watched.run, watched.config, watched.state)
        self._ended_at: float | None = None
        self._has_failed = False

    def look(self, events: Sequence[Event]) -> None:
        """Check whether the run still makes progress; judge and report a hang at once."""
        try:
            self._look(events)
        except Exception as error:  # noqa: BLE001 - a run must not end because of its watch
            if not self._has_failed:
                self._has_failed = True
                self._watched.say(f"airlock: the watch for hangs has failed, goes on: {error!r}")

    def _look(self, events: Sequence[Event]) -> None:
        hang = self._hang_watch.look(events, time.monotonic())
        if self._hang_watch.is_over() and self._ended_at is None:
            self._take_back()
        stall = self._hang_watch.new_stall()
        if hang:
            self._judge(hang)
        elif stall:
            self._tell(stall)

    def _take_back(self) -> None:
        """Say that a run which was said to hang goes on; the launcher is slower to say so then."""
        self._watched.events.emit("mark", "hang.over")
        self._watched.say("airlock: the ranks go on: the warning above is taken back")

    def _tell(self, stall: Stall) -> None:
        """Say that ranks wait for what does not move; if it lasts, the run hangs."""
        waiting = self._watched.state.status.waiting or "ranks wait for others"
        fields = {"waiting": waiting, "waited_s": stall.waited_s, "limit_s": stall.limit_s}
        self._watched.events.emit("mark", "stall", **fields)
        program, run_id = console_program(), self._watched.run.run_id
        self._watched.say(f"airlock: stalled: {waiting}\n  → {program} doctor {run_id}")

    def _judge(self, hang: Hang) -> None:
        from launch.run.supervise.ask_doctor import of_hung

        watched, state = self._watched, self._watched.state
        on_hang = watched.config.on_hang
        ends = on_hang == "end" or (on_hang == "auto" and not state.of_script)
        verdict = of_hung(watched.run, state, hang)
        if self._hang_watch.has_gone_on():
            return
        rank, cause, title = None, "hang", "makes no progress"
        if verdict is not None:
            rank, cause = verdict.rank, verdict.cause
            title = verdict.title.removeprefix(f"Rank {rank} ").removeprefix("The run ")
        self._emit(
            {
                "failed_rank": rank,
                "cause": cause,
                "title": title,
                "still_s": hang.still_s,
                "limit_s": hang.limit_s,
                "ends": ends,
            }
        )
        who = "the run" if rank is None else f"rank {rank}"
        what = "the run is ended" if ends else "it is left to go on (launch.on_hang)"
        watched.say(f"airlock: no progress for {clock_text(hang.still_s)}: {who} {title}; {what}")
        if ends:
            self._ended_at = time.monotonic()
            self._kill_ranks()

    def _emit(self, fields: dict[str, Any]) -> None:
        events, state = self._watched.events, self._watched.state
        num_lost = events.num_lost
        events.emit("error", "hang", **fields)
        if events.num_lost > num_lost:  # a full disk: the event cannot be read from there
            about = {"kind": "error", "name": "hang", "rank": None, "t": time.time()}
            state.add({**about, "attempt": state.status.attempt, **fields})

    def _kill_ranks(self) -> None:
        pids = {row.pid for row in self._watched.state.status.ranks}
        for process in self._watched.processes.alive():
            if process.pid in pids:
                kill(process)

    def end_stuck(self, agent: subprocess.Popen[bytes]) -> None:
        """End the agent of a hung run when a rank cannot be killed: the agent would wait for it."""
        if self._ended_at is None or time.monotonic() - self._ended_at < _KILLED_S:
            return
        self._ended_at = None
        if self._watched.state.failures:  # else all ranks have been started again
            self._watched.end_agent(agent)
