"""The named sets of a run ([evaluation.NAME]) in the card of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rundir.events import Event
from rundir.units import loss_text


def named_sets(events: Sequence[Event]) -> Iterator[str]:
    """Yield a table of what each named set measured first and last; nothing without any."""
    found: dict[str, list[Event]] = {}
    for one in events:
        if (one["kind"], one["name"]) == ("metric", "eval.set"):
            found.setdefault(one["set"], []).append(one)
    if not found:
        return
    yield from ("", "## Named sets", "")
    yield from ("| set | step | loss | exact match | samples |", "|---|---|---|---|---|")
    for name, measured in found.items():
        for one in {each["step"]: each for each in (measured[0], measured[-1])}.values():
            match = "" if one["exact_match"] is None else f"{one['exact_match']:.1%}"
            shown = loss_text(one["loss"])
            yield f"| {name} | {one['step']} | {shown} | {match} | {one['num_samples']:,} |"
