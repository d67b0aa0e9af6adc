"""The supervisor of a run: start the agent, follow events, ask policies, end all processes."""

from __future__ import annotations

import time
from functools import partial

from launch.plan.of_run import PlanOfRun
from launch.run.supervise.console import View, make_view
from launch.run.supervise.guard import MemoryGuard
from launch.run.supervise.parts import RunParts
from launch.run.supervise.policies import HangPolicy, StopPolicy, SurvivorPolicy, end_agent
from machine.processes import children
from rundir.events import Event

_POLL_S = 0.1
_QUIET_POLL_S, _QUIET_FROM_S = 0.4, 5.0  # where nothing has come from a training for so long


class Supervisor:
    """The supervisor: runs the agent of one run to its end, and gives each policy its turn."""

    def __init__(self, parts: RunParts, guard: MemoryGuard) -> None:
        self._parts, self._guard = parts, guard
        self._num_restarts = 0  # that have been told
        self._survivors = SurvivorPolicy(parts)
        self._hang = HangPolicy(parts)
        self._last_mono = 0.0  # when something new has come from the ranks

    def supervise(self, torchrun_args: list[str], plan: PlanOfRun) -> int:
        """Start the agent with `torchrun_args`; return its exit code once no rank is left.

        Raises DoesNotFitError when that is the answer of `plan`; then, too, no process is left.
        """
        parts, state = self._parts, self._parts.state
        state.enter("starting")
        view = make_view(parts.console, shows_output=state.of_script)
        keeper = children.start_keeper(parts.run.path)
        with parts.run.agent_log.open("ab") as log:
            agent = children.start(
                "launch.start.agent.agent",
                parts.run.path,
                *torchrun_args,
                env=parts.env,
                output=log,
                with_input=state.of_script,
            )
        stop = StopPolicy(
            parts,
            ask=partial(parts.workload.ask_to_stop, agent, state),
            end=partial(end_agent, parts, agent),
        )
        try:
            while agent.poll() is None:
                stop_asked = parts.signals.stop_asked  # earlier events are read next
                self._follow(view)
                plan.look(has_trained=state.status.step > 0)
                if stop_asked:
                    stop.pass_on()
                self._survivors.look()
                self._hang.end_stuck(agent)
                children.wait(agent, self._poll_s())
        finally:
            # Also if this loop fails: whatever happens here, the ranks do not outlive it.
            parts.processes.end()
            agent.wait()
            keeper.communicate()  # it is gone too, or ends now that its pipe is closed
            self._follow(view, agent.returncode)
            parts.follower.stop_sampling()
            view.close()
        return agent.returncode

    def _follow(self, view: View, agent_code: int | None = None) -> None:
        """Follow the run's events, and show new output.

        `agent_code`, the agent's exit code, is given in the last call.
        """
        parts, has_ended = self._parts, agent_code is not None

        def judge(events: list[Event]) -> None:
            if any(event["rank"] is not None for event in events):
                self._last_mono = time.monotonic()
            if not has_ended:
                self._hang.look(events)
            self._tell_restart()

        parts.follow(view, judge, lambda events: self._guard.proves_oom(events, agent_code))
        for lines in parts.workload.new_output(last=has_ended):
            self._last_mono = time.monotonic()
            if parts.signals.end_now:
                break
            parts.say("\n".join(lines))

    def _tell_restart(self) -> None:
        """Report a restart of all ranks, before anything that they report."""
        parts, state = self._parts, self._parts.state
        if len(state.restarts) != self._num_restarts:
            self._num_restarts = len(state.restarts)
            attempt, cause = state.status.attempt, state.restarts[-1]
            added = state.added_restarts
            limit = parts.config.max_restarts + len(added)
            parts.events.begin_attempt(attempt)
            parts.events.emit("mark", "restart", cause=cause, num_restarts=attempt, of=limit)
            is_added = bool(added) and added[-1]["attempt"] + 1 == attempt
            how = _how_recomputed(added[-1]) if is_added else ""
            parts.say(f"airlock: {cause}: restart {attempt} of {limit}{how}")

    def _poll_s(self) -> float:
        """Return the seconds until the next look; a look costs more than a millisecond."""
        is_quiet = time.monotonic() - self._last_mono > _QUIET_FROM_S
        is_training = self._parts.state.status.phase == "training"
        return _QUIET_POLL_S if is_quiet and is_training else _POLL_S


def _how_recomputed(added: Event) -> str:
    """Return what is different in a restart that the agent `added`, and how to start that way."""
    num = added["recomputed"]
    are_all = num is True
    return (
        f" with {'all' if are_all else num} blocks of layers recomputed in backward"
        f" (from the start: --set model.gradient_checkpointing={'true' if are_all else num})"
    )
