"""The pulse of a rank: its progress, in a small file; it stands still when the rank hangs.

The file is overwritten in place, many times a second if need be, so it holds two lines of a fixed
width: what the training does, and when a second thread of the rank last ran.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDTH = 192  # bytes of each of the two lines
_BLOCK = 4096  # reserved on the disk, so that a full disk changes nothing

# Phases that may take long without a tick though all is well; others are parts of a step.
ASIDE = ("start", "eval", "checkpoint", "export")


class Pulse:
    """The pulse that one rank writes, if it has a `path`; never raises: training matters more."""

    def __init__(self, path: Path | None = None, attempt: int = 0) -> None:
        self._attempt, self._pid = attempt, os.getpid()
        self._count = self._step = self._num_steps = 0
        self._memory = None if path is None else _mapped(path)
        self.tick("start")
        self.alive()

    def tick(self, phase: str) -> None:
        """Record that the training has moved, and does `phase` next."""
        self._count += 1
        self._write(
            0,
            f'{{"pid": {self._pid}, "attempt": {self._attempt}, "count": {self._count}, '
            f'"step": {self._step}, "num_steps": {self._num_steps}, "phase": "{phase}", '
            f'"mono": {time.monotonic():.3f}}}',
        )

    def stepped(self, step: int) -> None:
        """Record that `step` steps have been trained, by whichever run or attempt."""
        self._step = step
        self._num_steps += 1
        self.tick("step")

    def alive(self) -> None:
        """Record that Python code still runs in this process."""
        self._write(_WIDTH, f'{{"mono": {time.monotonic():.3f}}}')

    def _write(self, offset: int, text: str) -> None:
        if self._memory is not None:
            self._memory[offset : offset + _WIDTH] = (text.ljust(_WIDTH - 1) + "\n").encode()


def _mapped(path: Path) -> mmap.mmap | None:
    """Return the file mapped into memory, where writing needs no system call and no disk space."""
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # Else the page has no place on the disk, and writing to it may kill the process.
            if os.write(descriptor, b" " * _BLOCK) == _BLOCK:
                return mmap.mmap(descriptor, _BLOCK)
        finally:
            os.close(descriptor)
    except OSError:
        pass
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseState:
    """The contents of a rank's file; times are those of time.monotonic(), in seconds."""

    pid: int
    attempt: int
    count: int  # number of ticks
    step: int
    num_steps: int  # in this attempt
    phase: str
    mono: float  # of the last tick
    alive_mono: float


def read_pulse(path: Path) -> PulseState | None:
    """Return the contents of a file; None if there is none, or it is just being overwritten."""
    try:
        with path.open("rb") as file:
            lines = list(_records(file.read(2 * _WIDTH)))
        return PulseState(**lines[0], alive_mono=lines[1]["mono"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines()[:2]:
        yield json.loads(line)
