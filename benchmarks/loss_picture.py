"""Curves of losses as an SVG: a panel for each group of cases, a line for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_PANEL, _GAP, _HEIGHT, _MARGIN = 380, 60, 240, 40
_COLOURS = ("#111111", "#0072b2", "#009e73", "#d55e00")  # Okabe and Ito: told apart by all eyes
_AT_ONCE = 5  # steps that a point is the mean of

Curves = Mapping[str, Sequence[float]]


def curves_svg(panels: Mapping[str, Curves], described: str) -> str:
    """Return the picture; `panels` holds the losses of each step, by title and by name."""
    names = list(next(iter(panels.values())))
    width = _MARGIN + len(panels) * (_PANEL + _GAP)
    size, font = f"0 0 {width} {_HEIGHT + 90}", 'font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" {font} role="img">',
        f"<title>{escape(described)}</title>",
        f'<rect width="{width}" height="{_HEIGHT + 90}" fill="white"/>',
    ]
    for at, (title, curves) in enumerate(panels.items()):
        lines += _panel(_MARGIN + at * (_PANEL + _GAP), title, curves)
    for at, (name, colour) in enumerate(zip(names, _COLOURS, strict=False)):
        x, y = _MARGIN + 110 * at, _HEIGHT + 75
        lines.append(f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{x + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(left: int, title: str, curves: Curves) -> list[str]:
    means = {name: _means(losses) for name, losses in curves.items()}
    low, high = min(map(min, means.values())), max(map(max, means.values()))
    num_steps = max(map(len, curves.values()))
    top, bottom = 30, 30 + _HEIGHT

    def point(step: float, loss: float) -> str:
        y = bottom - (loss - low) / ((high - low) or 1.0) * _HEIGHT
        return f"{left + step / num_steps * _PANEL:.1f},{y:.1f}"

    lines = [
        f'<text x="{left}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{left} {top}V{bottom}h{_PANEL}" fill="none" stroke="#888"/>',
        f'<text x="{left - 5}" y="{top + 8}" text-anchor="end">{high:.2f}</text>',
        f'<text x="{left - 5}" y="{bottom}" text-anchor="end">{low:.2f}</text>',
        f'<text x="{left + _PANEL}" y="{bottom + 16}" text-anchor="end">step {num_steps}</text>',
    ]
    for losses, colour in zip(means.values(), _COLOURS, strict=False):
        points = " ".join(point((i + 0.5) * _AT_ONCE, loss) for i, loss in enumerate(losses))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return lines


def _means(losses: Sequence[float]) -> list[float]:
    parts = [losses[i : i + _AT_ONCE] for i in range(0, len(losses), _AT_ONCE)]
    return [sum(part) / len(part) for part in parts]
