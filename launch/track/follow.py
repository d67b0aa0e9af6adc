"""A run's events, read as they come and handed on to a tracker."""

from __future__ import annotations

from typing import Protocol

from launch.track.figures import figures_of, is_tracked
from rundir.events import Event, EventTail
from rundir.paths import RunDir


class Tracker(Protocol):
    """Where figures go. Every method may raise whatever its library raises."""

    def repeat_from(self, step: int) -> None:
        """The run goes on from a checkpoint: what was added of this step and later ones is void."""

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """Take in figures as they were after `step`, at unix time `t` in seconds."""

    def flush(self) -> None:
        """Bring what was added to where others see it, as far as that does not take long."""

    def close(self) -> None:
        """Bring all of it there."""


class Follower:
    """Hands the metrics of rank 0 and of the launcher on to a tracker."""

    def __init__(self, run: RunDir, tracker: Tracker) -> None:
        self._tails = [EventTail(run.event_file(writer)) for writer in ("rank0", "launch")]
        self._tracker = tracker
        self._step = 0  # the last one trained, which figures of the host and its GPUs belong to

    def follow(self) -> None:
        """Hand on what is new, in the order of its time."""
        events = [event for tail in self._tails for event in tail.new_events()]
        for event in sorted(events, key=lambda event: float(event["mono"])):
            self._take(event)
        if events:
            self._tracker.flush()

    def _take(self, event: Event) -> None:
        if event["name"] == "train.plan":
            self._step = event["first_step"]
            if event["attempt"] > 0:
                self._tracker.repeat_from(self._step + 1)
        elif is_tracked(event):
            step = event.get("step", self._step)
            if event["name"] == "train":
                self._step = step
            self._tracker.add(step, event["t"], figures_of(event))
