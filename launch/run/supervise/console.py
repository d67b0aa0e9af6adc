"""The display of a run in progress: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from launch.run.supervise.event_lines import plain_line, speed
from machine.processes.line_console import keep
from rundir.events import Event
from rundir.units import MIB, clock_text
from state.gpu_use import now_text
from state.run_state import RunState

_AGAIN_S = 60.0


class PlainView:
    """A view with one line for each event, in order of time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waits_since: float | None = None
        self._next_s = 0.0  # of waiting, until it is said again

    def show(self, state: RunState, events: list[Event]) -> None:
        """Show what `events`, already taken into `state`, have changed.

        Those are the lines of the ranks, the metrics and the checkpoints, and long waits.
        """
        for event in events:
            text = plain_line(state, event)
            if text:
                self._console.out(text)
        self._show_wait(state.status.waiting)

    def _show_wait(self, waiting: str | None) -> None:
        """Print who waits for whom, at first and each time that it has lasted twice as long."""
        now = time.monotonic()
        if waiting is None:
            self._waits_since = None
        elif self._waits_since is None or now - self._waits_since >= self._next_s:
            self._next_s = _AGAIN_S if self._waits_since is None else 2 * self._next_s
            self._waits_since = self._waits_since or now
            self._console.out(f"airlock: {waiting}")

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""


def is_routine(line: str) -> bool:
    """Return whether a line of the log is one that a live view shows by its state, not above it."""
    return _ROUTINE.match(line) is not None


_ROUTINE = re.compile(r"step \d+/\d+  loss |\[(Rank \d+|Zygote)\] ")
_WIDE = 120  # columns; on fewer, the figures get a line of their own
_AS_STATE = ("line", "train", "evolution")  # events that a live view shows by its state


class LiveView:
    """A live view of the ranks passing the gate, then of progress, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._live = Live(console=console, transient=True, refresh_per_second=4)
        self._live.start()

    def show(self, state: RunState, events: list[Event]) -> None:
        """Print evaluations, checkpoints and warnings above the view, redrawn from `state`."""
        for event in events:
            text = plain_line(state, event)
            if text and event["name"] in _AS_STATE:
                keep(self._live.console, text)
            elif text:
                self._live.console.out(text)
        self.draw(state)

    def draw(self, state: RunState) -> None:
        """Redraw the view from `state`."""
        status = state.status
        head = f"{status.phase}  {clock_text(time.monotonic() - state.started_mono)}"
        if state.zygote:
            head += f"  {state.zygote}"
        if status.waiting:
            head += f"  {status.waiting}"
        if status.phase in ("preparing", "starting"):
            self._live.update(Group(head, _rank_table(state)))
            return
        if self._task is None:
            self._task = self._progress.add_task("", total=status.total_steps, figures="")
        figures = _figures(state)
        is_narrow = self._live.console.width < _WIDE
        self._progress.update(
            self._task,
            description=head,
            total=status.total_steps,
            completed=status.step,
            figures="" if is_narrow else figures,
        )
        self._live.update(Group(self._progress, Text(figures)) if is_narrow else self._progress)

    def close(self) -> None:
        """Remove the view from the screen; lines printed above it stay."""
        self._live.stop()


View = PlainView | LiveView


def make_view(console: Console, *, shows_output: bool) -> View:
    """Return the view that suits `console`, where the ranks' own output may appear as well."""
    is_live = console.is_terminal and not shows_output
    return LiveView(console) if is_live else PlainView(console)


def _rank_table(state: RunState) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("rank", "phase", "private memory", "pid"):
        table.add_column(heading)
    for row in state.status.ranks:
        anon = "" if row.pss_anon_bytes is None else f"{row.pss_anon_bytes // MIB} MiB"
        table.add_row(str(row.rank), row.phase, anon, str(row.pid or ""))
    return table


def _figures(state: RunState) -> str:
    status = state.status
    parts = [f"step {status.step}/{status.total_steps}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.tokens_per_s is not None:
        parts.append(speed(status.tokens_per_s, status.mfu))
    if state.gpus:
        parts.append(now_text(state.gpus.values()))
    if status.exact_match is not None:
        parts.append(f"exact match {status.exact_match:.1%}")
    if status.eta_s is not None:
        parts.append(f"eta {clock_text(status.eta_s)}")
    return "  ".join(parts)
