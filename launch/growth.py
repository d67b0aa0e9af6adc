"""What a rank takes inside the gate: measured in one, foretold for the next of the same run."""

from __future__ import annotations

import contextlib
import json
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


def read_growth(file: Path) -> int | None:
    """The most that a rank took so far, bytes; None when none has come through yet."""
    try:
        growth: int = json.loads(file.read_text(encoding="ascii"))["growth_bytes"]
    except FileNotFoundError:
        return None
    return growth


def write_growth(file: Path, growth_bytes: int) -> None:
    """Note what a rank took. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        growth_bytes = max(growth_bytes, read_growth(file) or 0)
    write_text(file, json.dumps({"growth_bytes": growth_bytes}), durable=False)
