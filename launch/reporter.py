"""What a process of the run says of itself: a line in its log, and the same as an event."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from dataclasses import asdict
from pathlib import Path

from launch.memory import measure
from rundir.events import EventWriter


class Reporter:
    """Says what `who` ("Rank 3", "Zygote") does."""

    def __init__(self, events: EventWriter, who: str) -> None:
        self.events = events
        self.who = who

    def line(self, text: str) -> None:
        """Print `[Who] text`, whole."""
        line = f"[{self.who}] {text}"
        with contextlib.suppress(OSError):  # a full disk, or a script that has closed its output
            os.write(1, f"{line}\n".encode())
        self.events.emit("log", "line", text=line)

    def memory(self, label: str) -> None:
        """Print `MEM:LABEL` with this process's figures, and write the mark of that name."""
        memory = measure()
        self.events.emit("mark", f"mem.{label.lower().replace('-', '_')}", **asdict(memory))
        self.line(f"MEM:{label} {memory.line()}")


def write_output_to(log: Path) -> None:
    """Send this process's output, and that of every library in it, to `log`.

    There also go the stacks of all its threads, when it crashes or is sent SIGUSR2.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
