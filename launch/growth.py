"""What a rank takes inside the gate: measured in one, foretold for the next of the same run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from launch.ledger import anon_bytes
from rundir.atomic import write_text

_EVERY_S = 0.01


class Growth:
    """The peak of this process's anonymous memory in a block, less what it had before it.

    Pages of files are left out, as the kernel takes those back when it needs the room. A thread
    looks a hundred times a second; what comes and goes between two looks was never much.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._before_bytes = anon_bytes(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="growth", daemon=True)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, anon_bytes(os.getpid()) - self._before_bytes)


def read_growth(folder: Path) -> int | None:
    """The most that a rank took so far, bytes; None when none has come through yet."""
    found = [int(file.read_text(encoding="ascii")) for file in folder.glob("[0-9]*")]
    return max(found, default=None)


def write_growth(folder: Path, turn: int, growth_bytes: int) -> None:
    """Note what the rank with that turn took. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / str(turn), str(growth_bytes), durable=False)
