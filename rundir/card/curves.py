"""The figures of a run in the card of its model: the curves of its losses, and its named sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rundir.events import Event
from rundir.units import loss_text

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 640, 280, 56, 32, 16
_MOST_POINTS = 400
_LINES = (("train", "training loss", "#4e79a7"), ("eval", "held-out loss", "#e15759"))

Point = tuple[float, float]


def curves_svg(events: Sequence[Event]) -> str:
    """Return the losses by step as a small SVG; "" if no loss was measured at two steps."""
    curves = [(label, color, _points(events, name)) for name, label, color in _LINES]
    every = [point for _, _, points in curves for point in points]
    steps, losses = {step for step, _ in every}, [loss for _, loss in every]
    if min(steps, default=0) == max(steps, default=0):
        return ""
    low, high, last = min(losses), max(losses), max(steps)
    span = (high - low) or 1.0

    def place(point: Point) -> str:
        x = _LEFT + point[0] / last * (_WIDTH - _LEFT - _MARGIN)
        y = _MARGIN + (high - point[1]) / span * (_HEIGHT - _BOTTOM - _MARGIN)
        return f"{x:.1f},{y:.1f}"

    floor = _HEIGHT - _BOTTOM
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {font}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_LEFT},{_MARGIN}V{floor}H{_WIDTH - _MARGIN}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.3g}</text>',
        f'<text x="{_LEFT - 6}" y="{floor}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{_WIDTH - _MARGIN}" y="{floor + 18}" text-anchor="end">step {last:g}</text>',
    ]
    for number, (label, color, points) in enumerate(curve for curve in curves if curve[2]):
        x = _LEFT + 10 + 130 * number
        line = " ".join(map(place, points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x}" y="{floor + 18}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _points(events: Sequence[Event], name: str) -> list[Point]:
    """Return (step, loss) of each measurement, the last one of a step, thinned out evenly."""
    loss_by_step = {
        float(event["step"]): float(event["loss"])
        for event in events
        if (event["kind"], event["name"]) == ("metric", name)
        and math.isfinite(float(event["loss"]))
    }
    points = sorted(loss_by_step.items())
    if len(points) <= _MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[i * last // (_MOST_POINTS - 1)] for i in range(_MOST_POINTS)]


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
