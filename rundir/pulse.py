"""The pulse of a rank: its progress, in a small file; it stands still when the rank hangs.

The file is overwritten in place, many times a second if need be, so it holds lines of a fixed
width: what the training does, when a second thread of the rank last ran, and what that thread saw:
the collectives of each process group, the main thread, and how a script has ended.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_WIDTHS = (192, 192, 640, 1024, 1024)  # bytes of each line
_TICK, _ALIVE, _GROUPS, _MAIN, _LEFT = range(len(_WIDTHS))
_BLOCK = 4096  # reserved on the disk, so that a full disk changes nothing
_MOST_GROUPS = 16

# Phases that may take long without a tick though all is well; others are parts of a step.
ASIDE = ("start", "eval", "checkpoint", "export", "trace")
NCCL = "nccl:"  # before the name of a group whose collectives are NCCL's
SCRIPT = "script"  # the phase of a rank that runs a script of the user's, which never ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class MainThread:
    """What the main thread of a rank does, as its watchdog saw it; times are time.monotonic()."""

    file: str = ""  # the innermost line of the user's code; "" if that is unknown
    line: int = 0
    function: str = ""
    still_mono: float | None = None  # since when its stack has not changed
    waits_mono: float | None = None  # since when it waits for other ranks; None: it does not
    waits_in: str = ""  # for what: "all_reduce", "synchronize"
    in_lock: bool = False  # it waits for a lock or another thread of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """How and where a script has ended in a rank, although its process may still be there."""

    how: str  # "ended", "exited" (sys.exit) or "raised"
    file: str  # the last line that ran, of sys.exit or of the exception in the user's code
    line: int
    code: int  # exit code
    mono: float


class Pulse:
    """The pulse that one rank writes, if it has a `path`; never raises: training matters more."""

    def __init__(self, path: Path | None = None, attempt: int = 0, phase: str = "start") -> None:
        self._attempt, self._pid = attempt, os.getpid()
        self._count = self._step = self._num_steps = 0
        self._memory = None if path is None else _mapped(path)
        self.tick(phase)
        self.alive()

    def tick(self, phase: str) -> None:
        """Record that the training has moved, and does `phase` next."""
        self._count += 1
        self._write(
            _TICK,
            f'{{"pid": {self._pid}, "attempt": {self._attempt}, "count": {self._count}, '
            f'"step": {self._step}, "num_steps": {self._num_steps}, "phase": "{phase}", '
            f'"mono": {time.monotonic():.3f}}}',
        )

    def stepped(self, step: int) -> None:
        """Record that `step` steps have been trained, by whichever run or attempt."""
        self._step = step
        self._num_steps += 1
        self.tick("step")

    def alive(self, *, answers: bool = False) -> None:
        """Record that Python code still runs in this process.

        `answers`: the watchdog begins to write what it was asked for, and may keep the GIL.
        """
        self._write(
            _ALIVE,
            f'{{"mono": {time.monotonic():.3f}, "answers": {"true" if answers else "false"}}}',
        )

    def groups(
        self,
        counts: Mapping[str, tuple[int, int]],
        pending_mono: float | None,
        *,
        has_device: bool = False,
    ) -> None:
        """Record each group's last collective enqueued and last completed.

        `pending_mono` is since when one that is enqueued has not been completed; `has_device` tells
        whether the rank uses a GPU.
        """
        kept = dict(sorted(counts.items(), key=_most_pending)[:_MOST_GROUPS])
        since = None if pending_mono is None else round(pending_mono, 3)
        record = {"groups": kept, "pending_mono": since, "has_device": has_device}
        self._write(_GROUPS, json.dumps(record))

    def main_thread(self, main: MainThread) -> None:
        """Record what the main thread does."""
        self._write(_MAIN, _fitting(asdict(main), _WIDTHS[_MAIN]))

    def left(self, left: Left) -> None:
        """Record that the script has ended; a fork that ends in its place records nothing."""
        if os.getpid() == self._pid:
            self._write(_LEFT, _fitting(asdict(left), _WIDTHS[_LEFT]))

    def _write(self, number: int, text: str) -> None:
        if self._memory is not None and len(text) < _WIDTHS[number]:
            offset, width = sum(_WIDTHS[:number]), _WIDTHS[number]
            self._memory[offset : offset + width] = (text.ljust(width - 1) + "\n").encode()


def _most_pending(item: tuple[str, tuple[int, int]]) -> tuple[int, int]:
    enqueued, completed = item[1]
    return completed - enqueued, -enqueued


def _fitting(record: dict[str, Any], width: int) -> str:
    """Return `record` as JSON shorter than `width` bytes, with the end of its file name if need be.

    ASCII only, so that bytes are characters.
    """
    text = json.dumps(record)
    while len(text) >= width and record["file"]:
        record["file"] = record["file"][len(record["file"]) // 2 + 1 :]
        text = json.dumps(record)
    return text


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
    answers: bool = False  # since then it writes what it was asked for
    # Of each process group: the number of the collective last enqueued, and of that last completed.
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)
    pending_mono: float | None = None  # since when none of an unfinished group has been completed
    has_device: bool = False  # it uses a GPU
    main: MainThread = MainThread()
    left: Left | None = None  # a script only

    def deaf_s(self, now: float) -> float:
        """Return for how many seconds no Python code has run, at time.monotonic() `now`."""
        return 0.0 if self.answers else max(0.0, now - self.alive_mono)


def read_pulse(path: Path) -> PulseState | None:
    """Return the contents of a file; None if there is none, or it is just being overwritten.

    What the watchdog saw is left out while that is being overwritten.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_BLOCK)
        lines = [_record(data, number) for number in range(len(_WIDTHS))]
        groups, main, left = lines[_GROUPS], lines[_MAIN], lines[_LEFT]
        return PulseState(
            **lines[_TICK],
            alive_mono=lines[_ALIVE]["mono"],
            answers=lines[_ALIVE].get("answers", False),
            groups={
                name: (counts[0], counts[1]) for name, counts in groups.get("groups", {}).items()
            },
            pending_mono=groups.get("pending_mono"),
            has_device=groups.get("has_device", False),
            main=MainThread(**main),
            left=Left(**left) if left else None,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _record(data: bytes, number: int) -> dict[str, Any]:
    """Return the record in one line; {} if it is empty or, for a watchdog's, incomplete."""
    offset = sum(_WIDTHS[:number])
    try:
        record: dict[str, Any] = json.loads(data[offset : offset + _WIDTHS[number]].strip() or "{}")
    except ValueError:
        if number in (_TICK, _ALIVE):
            raise
        return {}
    return record
