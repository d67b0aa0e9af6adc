"""Watch one run: start the agent, follow its events, pass a stop on, leave no process behind."""

from __future__ import annotations

import subprocess
import time
from typing import Any

from rich.console import Console

from launch.plan.of_run import PlanOfRun
from launch.process import children
from launch.process.processes import OwnProcesses, is_pid_alive
from launch.process.signals import Signals
from launch.run_state.follow import Follower
from launch.run_state.hang import Hang, HangWatch
from launch.run_state.hang_evidence import collect
from launch.run_state.state import RunState
from launch.supervise.console import View, make_view
from launch.supervise.guard import MemoryGuard
from launch.supervise.workload import OwnTrainer, UserScript, Workload
from launch.track.sidecar import Tracking
from rundir.config import LaunchConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.units import clock_text

_POLL_S = 0.1
_SURVIVORS_EVERY_S = 0.5
_AGENT_GRACE_S = 5.0
_SURVIVOR_GRACE_S = 2.0
_KILLED_S = 10.0  # after which a process that was killed waits in the kernel, for good perhaps


class Supervisor:
    """Runs the agent of one run to its end."""

    def __init__(  # noqa: PLR0913 - the parts of a run, each by its name
        self,
        *,
        run: RunDir,
        config: LaunchConfig,
        state: RunState,
        console: Console,
        signals: Signals,
        events: EventWriter,
        processes: OwnProcesses,
        guard: MemoryGuard,
        tracking: Tracking,
    ) -> None:
        self._run, self._config, self._state, self._console = run, config, state, console
        self._signals, self._events, self._processes = signals, events, processes
        self._workload: Workload = UserScript(run) if state.of_script else OwnTrainer(run)
        self._guard, self._tracking = guard, tracking
        self._follower = Follower(run, state, events)
        self._hang = HangWatch(run, config, state)
        self._ended_hang_at: float | None = None
        self._stop_asked_at: float | None = None
        self._next_survivors = 0.0
        self._gone_since: float | None = None

    def supervise(
        self, torchrun_args: list[str], env: dict[str, str], plan: PlanOfRun | None = None
    ) -> int:
        """Start the agent with `torchrun_args`; returns its exit code once no rank is left.

        Raises DoesNotFitError when that is the `plan`'s answer; then, too, no process is left.
        """
        self._state.enter("starting")
        view = make_view(self._console, shows_output=self._state.of_script)
        keeper = children.start_keeper(self._run.path)
        with self._run.agent_log.open("ab") as log:
            agent = children.start(
                "launch.agent.agent", self._run.path, *torchrun_args, env=env, output=log
            )
        try:
            while agent.poll() is None:
                stop_asked = self._signals.stop_asked  # what the run had done by then is known next
                self._follow(view)
                if plan is not None:
                    plan.look(has_trained=self._state.status.step > 0)
                if stop_asked:
                    self._pass_on_stop(agent)
                self._end_survivors()
                self._end_stuck(agent)
                time.sleep(_POLL_S)
        finally:
            # Also when this loop fails: whatever happens here, the ranks do not outlive it.
            self._processes.end()
            agent.wait()
            keeper.communicate()  # it is gone too, or goes now that its pipe is closed
            self._follow(view, agent.returncode)
            view.close()
        return agent.returncode

    def _follow(self, view: View, agent_code: int | None = None) -> None:
        """Take in new events, show them, and write the status and host memory when due.

        The last time it is with the agent's exit code.
        """
        events = self._follower.new_events()
        if self._guard.proves_oom(events, agent_code):  # then that is told before what follows
            events = self._follower.new_events() + events
        num_restarts = len(self._state.restarts)
        self._follower.take_in(events)
        if agent_code is None and (hang := self._hang.look(events, time.monotonic())):
            self._say_hang(hang)
        if len(self._state.restarts) > num_restarts:
            self._note_restart()
        view.show(self._state, events)
        self._tracking.look(events)
        for lines in self._workload.new_output(last=agent_code is not None):
            if self._signals.end_now:
                break
            self._console.out("\n".join(lines), highlight=False)
        self._follower.write_down()

    def _note_restart(self) -> None:
        """Say that the agent has started all ranks again, before what they say themselves."""
        self._gone_since = None
        self._events.begin_attempt(self._state.status.attempt)
        cause, num = self._state.restarts[-1], self._state.status.attempt
        limit = self._config.max_restarts
        self._events.emit("mark", "restart", cause=cause, num_restarts=num, of=limit)
        self._console.out(f"airlock: {cause}: restart {num} of {limit}", highlight=False)

    def _say_hang(self, hang: Hang) -> None:
        """Find out who keeps the others waiting, say it, and end the ranks if that is wanted."""
        from diagnostics.doctor.runs.hang import of_hang

        is_script = self._state.of_script
        ends = self._config.on_hang == "end" or (self._config.on_hang == "auto" and not is_script)
        rows = self._state.status.ranks
        pids = {row.rank: row.pid for row in rows if row.pid is not None}
        verdict = of_hang(collect(self._run, self._state.status.attempt, pids, hang))
        if self._hang.has_gone_on():
            return
        rank, cause, title = None, "hang", "makes no progress"
        if verdict is not None:
            rank, cause = verdict.rank, verdict.cause
            title = verdict.title.removeprefix(f"Rank {rank} ").removeprefix("The run ")
        self._emit_hang(
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
        self._console.out(
            f"airlock: no progress for {clock_text(hang.still_s)}: {who} {title}; {what}",
            highlight=False,
        )
        if ends:
            self._ended_hang_at = time.monotonic()
            self._kill_ranks()

    def _emit_hang(self, fields: dict[str, Any]) -> None:
        num_lost = self._events.num_lost
        self._events.emit("error", "hang", **fields)
        if self._events.num_lost > num_lost:  # a full disk: it is not to be read there
            about = {"kind": "error", "name": "hang", "rank": None, "t": time.time()}
            self._state.add({**about, "attempt": self._state.status.attempt, **fields})

    def _kill_ranks(self) -> None:
        pids = {row.pid for row in self._state.status.ranks}
        for process in self._processes.alive():
            if process.pid in pids:
                process.kill()

    def _end_stuck(self, agent: subprocess.Popen[bytes]) -> None:
        """End the agent of a hung run when a rank cannot be killed: it would wait for it."""
        since = self._ended_hang_at
        if since is None or time.monotonic() - since < _KILLED_S:
            return
        self._ended_hang_at = None
        if self._state.failures:  # else all ranks have been started again
            self._end(agent)

    def write_status(self) -> None:
        """Write status.json now."""
        self._follower.write_status()

    def _pass_on_stop(self, agent: subprocess.Popen[bytes]) -> None:
        """At first ask the ranks, who save; asked again, or with nothing to save, end them."""
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            if said := self._workload.ask_to_stop(agent, self._state):
                self._console.out(said, highlight=False)
            else:
                self._signals.end_now = True
            self._state.enter("stopping")
        waited_s = time.monotonic() - self._stop_asked_at
        if waited_s > self._config.stop_timeout_s:
            self._signals.end_now = True
        if self._signals.end_now:
            self._end(agent)

    def _end_survivors(self) -> None:
        """End the other ranks when one they need has been gone for a while and the agent waits.

        The agent waits 30 s for ranks that do not die by SIGTERM, and for ever when a rank ended
        with 0 before its time. Killed ranks make it go on, and it reports them all.
        """
        now = time.monotonic()
        if now < self._next_survivors:
            return
        self._next_survivors = now + _SURVIVORS_EVERY_S
        rows = [row for row in self._state.status.ranks if row.pid is not None]
        if all(is_pid_alive(row.pid) for row in rows if row.pid is not None):
            return
        alive = {process.pid: process for process in self._processes.alive()}
        gone = self._workload.gone(self._state, alive)
        if not gone or not any(row.pid in alive for row in rows):
            return
        if self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since > _SURVIVOR_GRACE_S and not self._state.ended_by_us:
            self._events.emit("error", "rank.gone", failed_rank=gone[0])
            for row in rows:
                if row.pid in alive:
                    self._state.ended_by_us.add(row.rank)
                    alive[row.pid].kill()

    def _end(self, agent: subprocess.Popen[bytes]) -> None:
        """End the agent and, through it, its ranks; `supervise` ends what is left of them."""
        agent.send_signal(self._workload.end_signal)
        try:
            agent.wait(_AGENT_GRACE_S)
        except subprocess.TimeoutExpired:
            agent.kill()
