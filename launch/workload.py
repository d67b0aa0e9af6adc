"""What the ranks run, as far as watching over them depends on it: our trainer, or a script."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Container, Iterable
from typing import Protocol

from launch.log_tail import RankOutput
from launch.state import RunState
from rundir import control
from rundir.paths import RunDir


class Workload(Protocol):
    """The rules that differ."""

    end_signal: signal.Signals  # what ends the agent, and through it the ranks, at once

    def new_output(self, *, last: bool = False) -> Iterable[list[str]]:
        """Lines to show of what the ranks have printed, in pieces; the `last` time all of them."""

    def ask_to_stop(self, agent: subprocess.Popen[bytes], state: RunState) -> str | None:
        """Ask the ranks to stop. Returns what to tell people, or None where that is of no use."""

    def gone(self, state: RunState, alive: Container[int]) -> list[int]:
        """The ranks that have left although the others need them; `alive` are live pids."""


def ask_to_save(run: RunDir, state: RunState) -> str | None:
    """Ask our trainer to save and stop; before training there is nothing to save: None.

    Returns what to tell people.
    """
    if state.status.phase not in ("training", "finishing"):
        return None
    try:
        control.ask(run, "stop")
    except OSError:  # where no empty file can be made, no checkpoint can either
        return None
    saver = "the ranks save" if len(state.status.ranks) > 1 else "the run saves"
    return f"stopping: {saver} a checkpoint; Ctrl-C again ends at once"


class OwnTrainer:
    """Airlock's trainer: it saves when it is asked to stop, and says itself when it is done."""

    end_signal = signal.SIGTERM

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def new_output(self, *, last: bool = False) -> Iterable[list[str]]:  # noqa: ARG002 - as for scripts
        """None: what it has to say are events, and they are shown."""
        return []

    def ask_to_stop(self, agent: subprocess.Popen[bytes], state: RunState) -> str | None:  # noqa: ARG002
        """Through the run folder."""
        return ask_to_save(self._run, state)

    def gone(self, state: RunState, alive: Container[int]) -> list[int]:
        """Whoever is no longer there before the end has been announced."""
        if state.result:
            return []
        return [
            row.rank for row in state.status.ranks if row.pid is not None and row.pid not in alive
        ]


class UserScript:
    """A script as torchrun runs it: what it prints is shown, and exit codes are all it tells."""

    end_signal = signal.SIGKILL

    def __init__(self, run: RunDir) -> None:
        self._output = RankOutput(run.agent_log.parent)

    def new_output(self, *, last: bool = False) -> Iterable[list[str]]:
        """Everything."""
        return self._output.new_lines(last=last)

    def ask_to_stop(self, agent: subprocess.Popen[bytes], state: RunState) -> str | None:  # noqa: ARG002
        """By SIGTERM, which the agent passes on; it allows the ranks 30 seconds."""
        agent.send_signal(signal.SIGTERM)
        return "stopping: the script has 30 seconds; Ctrl-C again ends at once"

    def gone(self, state: RunState, alive: Container[int]) -> list[int]:
        """Those that failed: a rank that ends with 0 leaves the others to their work."""
        if state.status.phase == "stopping":
            return []
        return [
            row.rank
            for row in state.status.ranks
            if row.phase == "failed" and row.pid is not None and row.pid not in alive
        ]
