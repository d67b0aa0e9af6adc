"""Which figures of a run's events are tracked, and by what names: those that the field uses."""

from __future__ import annotations

from typing import Any

from rundir.events import Event
from rundir.schema import spec_of

_METRICS = ("train", "eval", "host", "gpu")
_NO_FIGURES = ("step", "index")  # they say where a figure belongs
_NOT_FINITE = ("nan", "inf", "-inf")  # as events have them, JSON having no such numbers


def is_tracked(event: Event) -> bool:
    """Whether it is a metric."""
    return event["kind"] == "metric" and event["name"] in _METRICS


def figures_of(event: Event) -> dict[str, float]:
    """Name → figure of a metric: `train/loss`, `time/data_s`, `host/pss_bytes`; without nulls."""
    fields = [key for key in spec_of("metric", event["name"]).fields if key not in _NO_FIGURES]
    found = {_name(event, key): _number(event.get(key)) for key in fields}
    return {name: number for name, number in found.items() if number is not None}


def _name(event: Event, key: str) -> str:
    if key.startswith("time_"):
        return f"time/{key.removeprefix('time_')}"
    if "index" in event:
        return f"{event['name']}/{event['index']}/{key}"
    return f"{event['name']}/{key}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) or value in _NOT_FINITE else None
