"""Reports of a process about itself: lines in its log, the same as events, and its last words."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine.cores.binding import Bound
from machine.memory.limits import is_out_of_memory, note_address_space
from machine.memory.process_memory import measure
from machine.processes.stacks import answer_in
from rundir.errors import ExitCode, UserError
from rundir.events import EventWriter


class Reporter:
    """The reporter of `who` ("Rank 3", "Zygote"); `log` is the file descriptor for its lines."""

    def __init__(self, events: EventWriter, who: str, log: int = 1) -> None:
        self.events = events
        self.who = who
        self._log = log

    def line(self, text: str) -> None:
        """Write the line `[Who] text` in one piece."""
        line = f"[{self.who}] {text}"
        with contextlib.suppress(OSError):  # a full disk, or a script that has closed its output
            before = "\n" if _ends_within_a_line(self._log) else ""
            os.write(self._log, f"{before}{line}\n".encode())
        self.events.emit("log", "line", text=line)

    def bound(self, to: Bound | None) -> None:
        """Write a NUMA line with the cores and memory of this process, and the mark; None: no."""
        if to is None:
            return
        self.events.emit("mark", "numa", **asdict(to))
        cores = "" if to.numa_node is None else f"node={to.numa_node} cores={to.cores} "
        self.line(f"NUMA: {cores}memory: {to.memory}")

    def memory(self, label: str) -> None:
        """Write a `MEM:LABEL` line with this process's memory, and the mark of that name."""
        memory = measure()
        self.events.emit("mark", f"mem.{label.lower().replace('-', '_')}", **asdict(memory))
        self.line(f"MEM:{label} {memory.line()}")


def _ends_within_a_line(log: int) -> bool:
    """Return whether the last line of a log is not ended: a script's, or a progress bar."""
    size = os.fstat(log).st_size  # 0 of what is no file
    if not size:
        return False
    with Path(f"/proc/self/fd/{log}").open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"


def write_output_to(log: Path, stacks: Path) -> None:
    """Send this process's output, and that of every library in it, to `log`.

    On a crash or SIGUSR2 the stacks of all its threads go there as well. Stacks that Airlock itself
    asks for go to `stacks`.
    """
    descriptor = open_log(log)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    write_stacks_to(2)
    answer_in(stacks)


def open_log(log: Path) -> int:
    """Open `log` for appending and return the file descriptor. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write_stacks_to(log: int) -> None:
    """Have the stacks of all threads written to `log` on a crash or SIGUSR2."""
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR2, log, all_threads=True)


def tell_failure(events: EventWriter, error: BaseException) -> str:
    """Write the event of a rank that `error` ends; return the error as text for the log."""
    words = last_words(error)
    events.emit("error", "rank.exception", **words)
    return str(words["traceback"])


def last_words(error: BaseException) -> dict[str, Any]:
    """Return the fields of the `rank.exception` event for `error`."""
    code = ExitCode.RANK_FAILED
    if is_out_of_memory(error):
        code = ExitCode.OUT_OF_MEMORY
        traceback.clear_frames(error.__traceback__)  # frees the memory that reporting needs
        note_address_space(error)
    if isinstance(error, UserError):  # its message says what to do: a traceback adds nothing
        code, text = error.code, f"{error}\n"
    else:
        text = "".join(traceback.format_exception(error))
    return {
        "exception": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "exit_code": int(code),
    }
