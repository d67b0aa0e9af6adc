"""The supervisor of a run: start the agent, follow events, ask policies, end all processes."""

from __future__ import annotations

import time

from launch.plan.of_run import PlanOfRun
from launch.run.supervise.console import View, make_view
from launch.run.supervise.guard import MemoryGuard
from launch.run.supervise.on_event import OnEvent
from launch.run.supervise.policies import (
    HangPolicy,
    RestartPolicy,
    StopPolicy,
    SurvivorPolicy,
    Watched,
)
from launch.track.sidecar import Tracking
from machine.processes import children
from state.follow import Follower

_POLL_S = 0.1
_QUIET_POLL_S, _QUIET_FROM_S = 0.4, 5.0  # where nothing has come from a training for so long


class Supervisor:
    """The supervisor: runs the agent of one run to its end, and gives each policy its turn."""

    def __init__(
        self, watched: Watched, guard: MemoryGuard, tracking: Tracking, on_event: OnEvent
    ) -> None:
        self._watched, self._guard, self._tracking = watched, guard, tracking
        self._on_event = on_event
        self._follower = Follower(watched.run, watched.state, watched.events, watched.gpus)
        self._stop = StopPolicy(watched)
        self._restarts = RestartPolicy(watched)
        self._survivors = SurvivorPolicy(watched)
        self._hang = HangPolicy(watched)
        self._last_mono = 0.0  # when something new has come from the ranks

    def supervise(
        self, torchrun_args: list[str], env: dict[str, str], plan: PlanOfRun | None = None
    ) -> int:
        """Start the agent with `torchrun_args`; return its exit code once no rank is left.

        Raises DoesNotFitError when that is the answer of `plan`; then, too, no process is left.
        """
        watched, state = self._watched, self._watched.state
        state.enter("starting")
        view = make_view(watched.console, shows_output=state.of_script)
        keeper = children.start_keeper(watched.run.path)
        with watched.run.agent_log.open("ab") as log:
            agent = children.start(
                "launch.start.agent.agent",
                watched.run.path,
                *torchrun_args,
                env=env,
                output=log,
                with_input=state.of_script,
            )
        try:
            while agent.poll() is None:
                stop_asked = watched.signals.stop_asked  # earlier events are read next
                self._follow(view)
                if plan is not None:
                    plan.look(has_trained=state.status.step > 0)
                if stop_asked:
                    self._stop.pass_on(agent)
                self._survivors.look()
                self._hang.end_stuck(agent)
                children.wait(agent, self._poll_s())
        finally:
            # Also if this loop fails: whatever happens here, the ranks do not outlive it.
            watched.processes.end()
            agent.wait()
            keeper.communicate()  # it is gone too, or ends now that its pipe is closed
            self._follow(view, agent.returncode)
            self._follower.stop_sampling()
            view.close()
        return agent.returncode

    def _follow(self, view: View, agent_code: int | None = None) -> None:
        """Take in new events, show them, and write the status and host memory when due.

        `agent_code`, the agent's exit code, is given in the last call.
        """
        watched, has_ended = self._watched, agent_code is not None
        events = self._follower.new_events()
        if self._guard.proves_oom(events, agent_code):  # the proof comes before what follows
            events = self._follower.new_events() + events
        self._follower.take_in(events)
        if any(event["rank"] is not None for event in events):
            self._last_mono = time.monotonic()
        if not has_ended:
            self._hang.look(events)
        if self._restarts.look():
            self._survivors.restarted()
        view.show(watched.state, events)
        self._tracking.look(events)
        self._on_event.look(events)
        for lines in watched.workload.new_output(last=has_ended):
            self._last_mono = time.monotonic()
            if watched.signals.end_now:
                break
            watched.say("\n".join(lines))
        self._follower.write_down()

    def _poll_s(self) -> float:
        """Return the seconds until the next look; a look costs more than a millisecond."""
        is_quiet = time.monotonic() - self._last_mono > _QUIET_FROM_S
        is_training = self._watched.state.status.phase == "training"
        return _QUIET_POLL_S if is_quiet and is_training else _POLL_S

    def write_status(self) -> None:
        """Write status.json now."""
        self._follower.write_status()
