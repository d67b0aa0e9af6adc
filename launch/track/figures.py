"""A reader of a run's events as they arrive, and the figures in them that a tracker gets."""

from __future__ import annotations

from typing import Any

from rundir.events import Event, EventTail
from rundir.paths import RunDir
from rundir.schema import spec_of

_METRICS = ("train", "eval", "eval.set", "host", "gpu")
# They say what a figure belongs to.
_NO_FIGURES = ("step", "index", "set", "num_samples", "num_labels")
_NOT_FINITE = ("nan", "inf", "-inf")  # as in events, since JSON has no such numbers


def figures_of(event: Event) -> dict[str, float]:
    """Return the figures of a metric by name (`train/loss`, `time/data_s`, `host/pss_bytes`).

    Nulls are left out.
    """
    fields = [key for key in spec_of("metric", event["name"]).fields if key not in _NO_FIGURES]
    figures = {_name(event, key): _number(event.get(key)) for key in fields}
    return {name: number for name, number in figures.items() if number is not None}


def _name(event: Event, key: str) -> str:
    if key.startswith("time_"):
        return f"time/{key.removeprefix('time_')}"
    if "set" in event:
        return f"eval/{event['set']}/{key}"
    if "index" in event:
        return f"{event['name']}/{event['index']}/{key}"
    return f"{event['name']}/{key}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) or value in _NOT_FINITE else None


class FigureTracker:
    """A destination of figures; every method may raise whatever its library raises."""

    def repeat_from(self, step: int) -> None:
        """Drop what was added of this step and later ones: the run resumes from a checkpoint.

        A service forgets nothing, and its charts show both.
        """

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """Add figures as they were after `step`, at Unix time `t` in seconds."""

    def flush(self) -> None:
        """Publish what was added, as far as that does not take long; a service does by itself."""

    def close(self) -> None:
        """Publish all of it."""


class MetricReader:
    """A reader that passes the metrics of rank 0 and of the launcher on to a tracker."""

    def __init__(self, run: RunDir, tracker: FigureTracker) -> None:
        self._tails = [EventTail(run.event_file(writer)) for writer in ("rank0", "launch")]
        self._tracker = tracker
        self._step = 0  # the last one trained, which figures of the host and its GPUs belong to

    def follow(self) -> None:
        """Pass on what is new, in order of time."""
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
        elif event["kind"] == "metric" and event["name"] in _METRICS:
            step = event.get("step", self._step)
            if event["name"] == "train":
                self._step = step
            self._tracker.add(step, event["t"], figures_of(event))
