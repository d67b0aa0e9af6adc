"""The policies of the supervisor, one for each matter: stop, lost ranks, a hang.

A policy keeps its own state and is called in every round of the supervisor's loop.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from launch.run.supervise.parts import RunParts
from machine.processes.descendants import is_pid_alive, kill
from machine.typed import console_program
from rundir.events import Event
from rundir.units import clock_text
from state.hang import Hang, HangWatch
from state.waits import Stall

_SURVIVORS_EVERY_S = 0.5
_SURVIVOR_GRACE_S = 2.0
_AGENT_GRACE_S = 5.0
_KILLED_S = 10.0  # a killed process that is still there waits in the kernel, for good perhaps


def end_agent(parts: RunParts, agent: subprocess.Popen[bytes]) -> None:
    """End the agent and, through it, its ranks; the supervisor ends any that are left."""
    agent.send_signal(parts.workload.end_signal)
    try:
        agent.wait(_AGENT_GRACE_S)
    except subprocess.TimeoutExpired:
        agent.kill()


class StopPolicy:
    """The stop policy: ask the ranks to save; asked again, or with nothing to save, end them.

    `ask` returns a message for the user, or None if asking is of no use; `end` ends the ranks.
    """

    def __init__(
        self, parts: RunParts, *, ask: Callable[[], str | None], end: Callable[[], None]
    ) -> None:
        self._parts, self._ask, self._end = parts, ask, end
        self._asked_at: float | None = None

    def pass_on(self) -> None:
        """Pass on a stop: ask the ranks at first, end them if they take too long."""
        parts, signals = self._parts, self._parts.signals
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            if message := self._ask():
                parts.say(message)
            else:
                signals.end_now = True
            parts.state.enter("stopping")
        if time.monotonic() - self._asked_at > parts.config.stop_timeout_s:
            signals.end_now = True
        if signals.end_now:
            self._end()


class SurvivorPolicy:
    """The survivor policy: end the other ranks if one they need is gone and the agent waits.

    The agent waits 30 s for ranks that do not die by SIGTERM, and forever when a rank ended early
    with 0. Once ranks are killed, the agent continues and reports them all.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._next_look = 0.0
        self._num_restarts = 0
        self._gone_since: float | None = None

    def look(self) -> None:
        """End the survivors if their time is up."""
        now, state = time.monotonic(), self._parts.state
        if now < self._next_look:
            return
        self._next_look = now + _SURVIVORS_EVERY_S
        if len(state.restarts) != self._num_restarts:  # all ranks are new
            self._num_restarts, self._gone_since = len(state.restarts), None
        rows = [row for row in state.status.ranks if row.pid is not None]
        if all(is_pid_alive(row.pid) for row in rows if row.pid is not None):
            return
        alive = {process.pid: process for process in self._parts.processes.alive()}
        gone = self._parts.workload.gone(state, alive)
        if not gone or not any(row.pid in alive for row in rows):
            return
        if self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since > _SURVIVOR_GRACE_S and not state.ended_by_us:
            self._parts.events.emit("error", "rank.gone", failed_rank=gone[0])
            for row in rows:
                if row.pid in alive:
                    state.ended_by_us.add(row.rank)
                    kill(alive[row.pid])


class HangPolicy:
    """The hang policy: find out who keeps the others waiting, report it, maybe end the ranks."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._hang_watch = HangWatch(parts.run, parts.config, parts.state)
        self._ended_at: float | None = None
        self._has_failed = False

    def look(self, events: Sequence[Event]) -> None:
        """Check whether the run still makes progress; judge and report a hang at once."""
        try:
            self._look(events)
        except Exception as error:  # noqa: BLE001 - a run must not end because of its watch
            if not self._has_failed:
                self._has_failed = True
                self._parts.say(f"airlock: the watch for hangs has failed, goes on: {error!r}")

    def _look(self, events: Sequence[Event]) -> None:
        hang = self._hang_watch.look(events, time.monotonic())
        if self._hang_watch.is_over() and self._ended_at is None:
            self._take_back()
        stall = self._hang_watch.new_stall()
        if hang:
            self._judge(hang)
        elif stall:
            self._say_stalled(stall)

    def _take_back(self) -> None:
        """Say that a run which was said to hang goes on; the launcher is slower to say so then."""
        self._parts.events.emit("mark", "hang.over")
        self._parts.say("airlock: the ranks go on: the warning above is taken back")

    def _say_stalled(self, stall: Stall) -> None:
        """Say that ranks wait for what does not move; if it lasts, the run hangs."""
        waiting = self._parts.state.status.waiting or "ranks wait for others"
        fields = {"waiting": waiting, "waited_s": stall.waited_s, "limit_s": stall.limit_s}
        self._parts.events.emit("mark", "stall", **fields)
        program, run_id = console_program(), self._parts.run.run_id
        self._parts.say(f"airlock: stalled: {waiting}\n  → {program} doctor {run_id}")

    def _judge(self, hang: Hang) -> None:
        from launch.run.supervise.ask_doctor import of_hung

        parts, state = self._parts, self._parts.state
        on_hang = parts.config.on_hang
        ends = on_hang == "end" or (on_hang == "auto" and not state.of_script)
        verdict = of_hung(parts.run, state, hang)
        if self._hang_watch.has_gone_on():
            return
        rank, cause, title = None, "hang", "makes no progress"
        if verdict is not None:
            rank, cause = verdict.rank, verdict.cause
            title = verdict.title.removeprefix(f"Rank {rank} ").removeprefix("The run ")
        fields = {
            "failed_rank": rank,
            "cause": cause,
            "title": title,
            "still_s": hang.still_s,
            "limit_s": hang.limit_s,
            "ends": ends,
        }
        parts.emit_error(parts.events, "hang", fields)
        who = "the run" if rank is None else f"rank {rank}"
        what = "the run is ended" if ends else "it is left to go on (launch.on_hang)"
        parts.say(f"airlock: no progress for {clock_text(hang.still_s)}: {who} {title}; {what}")
        if ends:
            self._ended_at = time.monotonic()
            self._kill_ranks()

    def _kill_ranks(self) -> None:
        pids = {row.pid for row in self._parts.state.status.ranks}
        for process in self._parts.processes.alive():
            if process.pid in pids:
                kill(process)

    def end_stuck(self, agent: subprocess.Popen[bytes]) -> None:
        """End the agent of a hung run when a rank cannot be killed: the agent would wait for it."""
        if self._ended_at is None or time.monotonic() - self._ended_at < _KILLED_S:
            return
        self._ended_at = None
        if self._parts.state.failures:  # else all ranks have been started again
            end_agent(self._parts, agent)
