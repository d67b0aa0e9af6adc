"""The display of a run in progress: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from launch.run_state.gpu_use import now_text, warning_of
from launch.run_state.state import RunState
from rundir.events import Event
from rundir.units import MIB, clock_text


class View(Protocol):
    """A display of the state of a run; `close` leaves the terminal as it was."""

    def show(self, state: RunState, events: list[Event]) -> None:
        """Show what `events`, already taken into `state`, have changed."""

    def close(self) -> None:
        """Remove a live view from the screen."""


def make_view(console: Console, *, shows_output: bool) -> View:
    """Return the view that suits `console`, where the ranks' own output may appear as well."""
    is_live = console.is_terminal and not shows_output
    return LiveView(console) if is_live else PlainView(console)


class PlainView:
    """A view with one line for each event, in order of time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, state: RunState, events: list[Event]) -> None:
        """Print the lines of the ranks, the metrics and the checkpoints."""
        for event in events:
            text = plain_line(state, event)
            if text:
                self._console.out(text, highlight=False)

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""


def plain_line(state: RunState, event: Event) -> str | None:
    """Return the line for one event, or None if there is nothing to say."""
    text: str | None = None
    match event["kind"], event["name"]:
        case "log", "line":
            text = event["text"]
        case "mark", "start" if event["reason"]:
            text = f"airlock: starting cold: {event['reason']}"
        case "mark", "train.plan":
            text = (
                f"training {event['num_trainable']:,} of {event['num_parameters']:,} parameters, "
                f"{event['num_train_samples']:,} samples, {event['total_steps']:,} steps"
            )
        case "metric", "train":
            eta = state.status.eta_s
            left = "" if eta is None else f"  eta {clock_text(eta)}"
            text = (
                f"step {event['step']}/{state.status.total_steps}  loss {event['loss']:.4f}  "
                f"lr {event['lr']:.2e}  {speed(event['tokens_per_s'], event['mfu'])}"
                f"{_gpus(state)}{left}"
            )
        case "metric", "gpu" if state.gpus[event["index"]].warned_of is event:
            text = warning_of(state.gpus[event["index"]])
        case "mark", "gpu.silent":
            who = "the NVIDIA driver" if event["index"] is None else f"GPU {event['index']}"
            text = (
                f"airlock: {who} does not answer any more: {event['why']}\n"
                "  → sudo dmesg | grep -i -e xid -e nvrm   # what the driver says of it"
            )
        case "metric", "eval":
            match_ = event["exact_match"]
            exact = "" if match_ is None else f"  exact match {match_:.1%}"
            text = f"held-out after step {event['step']}  loss {event['loss']:.4f}{exact}"
        case "end", "checkpoint" if event["ok"]:
            text = f"checkpoint after step {event['step']} saved"
    return text


def speed(tokens_per_s: float, mfu: float | None) -> str:
    """Return tokens per second, and, if known, the share of the GPUs' peak FLOPS (MFU), as text."""
    return f"{tokens_per_s:,.0f} tokens/s" + ("" if mfu is None else f"  MFU {mfu:.1%}")


def _gpus(state: RunState) -> str:
    text = now_text(state.gpus.values())
    return f"  {text}" if text else ""


_ABOVE = ("eval", "checkpoint", "train.plan", "start", "gpu", "gpu.silent")


class LiveView:
    """A live view of the ranks passing the gate, then of progress, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
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
            if event["name"] in _ABOVE:
                text = plain_line(state, event)
                if text:
                    self._live.console.out(text, highlight=False)
        status = state.status
        head = f"{status.phase}  {clock_text(time.monotonic() - self._started)}"
        if state.zygote:
            head += f"  {state.zygote}"
        if status.phase in ("preparing", "starting"):
            self._live.update(Group(head, _rank_table(state)))
            return
        if self._task is None:
            self._task = self._progress.add_task("", total=status.total_steps, figures="")
        self._progress.update(
            self._task, description=head, completed=status.step, figures=_figures(state)
        )
        self._live.update(self._progress)

    def close(self) -> None:
        """Remove the view from the screen; lines printed above it stay."""
        self._live.stop()


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
