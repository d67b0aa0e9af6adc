"""The named sets of a run ([evaluation.NAME]) in the card of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rundir.events import Event
from rundir.units import loss_text


def named_sets(events: Sequence[Event]) -> Iterator[str]:
    """Yield a table of what each named set measured first and last; nothing without any."""
    events_by_set: dict[str, list[Event]] = {}
    for event in events:
        if (event["kind"], event["name"]) == ("metric", "eval.set"):
            events_by_set.setdefault(event["set"], []).append(event)
    if not events_by_set:
        return
    yield from ("", "## Named sets", "")
    yield from ("| set | step | loss | exact match | samples |", "|---|---|---|---|---|")
    for name, measured in events_by_set.items():
        for event in {each["step"]: each for each in (measured[0], measured[-1])}.values():
            match = "" if event["exact_match"] is None else f"{event['exact_match']:.1%}"
            shown = loss_text(event["loss"])
            yield f"| {name} | {event['step']} | {shown} | {match} | {event['num_samples']:,} |"
