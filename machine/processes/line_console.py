"""The console of a command: rich's, which also keeps what a run says in the run's own log."""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console

from machine.processes.run_log import RunLog
from rundir.paths import RunDir

_MOST_EARLY = 1000  # texts said before there is a run folder


class LineConsole(Console):
    """A console whose lines are kept: in memory at first, in logs/run.log once there is a run."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file=file, highlight=False)
        self._early: list[str] = []
        self._run_log: RunLog | None = None

    def out(self, *objects: Any, sep: str = " ", end: str = "\n", **style: Any) -> None:
        """Print text as `Console.out` does, and keep it."""
        super().out(*objects, sep=sep, end=end, **style)
        self.keep(sep.join(map(str, objects)) + end)

    def keep(self, text: str) -> None:
        """Keep text that is not printed here."""
        if self._run_log is not None:
            self._run_log.write(text)
        elif len(self._early) < _MOST_EARLY:
            self._early.append(text)

    def keep_in(self, run: RunDir) -> None:
        """Write the log of `run` from now on, beginning with what has been said so far."""
        self._run_log = RunLog(run)
        if self._early:
            self._run_log.write("".join(self._early))
            self._early = []


def keep_in(console: Console, run: RunDir) -> None:
    """Have `console` write the log of `run`, if it is one that keeps its lines."""
    if isinstance(console, LineConsole):
        console.keep_in(run)


def keep(console: Console, text: str) -> None:
    """Keep a line that a live view does not print, so that the log is complete."""
    if isinstance(console, LineConsole):
        console.keep(f"{text}\n")
