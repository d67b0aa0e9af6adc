"""A picture of a start: one row for each process, one bar for each thing it does."""

from __future__ import annotations

from pathlib import Path

from benchmarks.starts.launchers import Span

_COLOURS = {"wait": "#d9d9d9", "import": "#4c78a8", "load": "#f58518", "meet": "#54a24b"}


def draw(starts: dict[str, tuple[float, tuple[Span, ...]]], file: Path) -> None:
    """Write `starts` (launcher → monotonic begin, spans) to `file`, one panel below the other.

    Raises ImportError if matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    rows = {
        name: sorted({span.row for span in spans}, key=_order)
        for name, (_, spans) in starts.items()
    }
    figure, panels = plt.subplots(
        len(starts),
        1,
        sharex=True,
        squeeze=False,
        layout="constrained",
        figsize=(9, 0.7 + sum(0.5 + 0.17 * len(names) for names in rows.values())),
        height_ratios=[2 + len(names) for names in rows.values()],
    )
    for panel, (name, (begin, spans)) in zip(panels[:, 0], starts.items(), strict=True):
        for span in spans:
            panel.barh(
                rows[name].index(span.row),
                span.end - span.begin,
                left=span.begin - begin,
                color=_COLOURS[span.what],
                height=0.8,
            )
        panel.set_yticks(range(len(rows[name])), rows[name], fontsize=7)
        panel.invert_yaxis()
        panel.set_title(name, loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlim(left=0)
    panels[-1, 0].set_xlabel("seconds since the command was typed")
    legend = [Patch(color=colour, label=what) for what, colour in _COLOURS.items()]
    figure.legend(handles=legend, loc="outside upper right", ncols=len(legend), fontsize=8)
    figure.savefig(file)
    plt.close(figure)


def _order(row: str) -> tuple[bool, int]:
    """Sort key that puts the zygote first, then the ranks by number."""
    kind, _, number = row.partition(" ")
    return kind != "zygote", int(number or 0)
