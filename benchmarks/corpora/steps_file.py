"""A file to which a program's processes add a line per step: its end time and its work."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class StepsFile:
    """The file, opened on the first write, so that it may be passed to other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StepsFile, (self.path,)

    def add(self, work: float) -> None:
        """Record that a step has just ended."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
        os.write(self._descriptor, f"{time.monotonic()} {work}\n".encode())

    def read(self) -> tuple[list[float], list[float]]:
        """Return (end of each step in monotonic seconds; its work), in order of time."""
        text = self.path.read_text(encoding="ascii") if self.path.exists() else ""
        lines = sorted(tuple(map(float, line.split())) for line in text.split("\n")[:-1])
        return [line[0] for line in lines], [line[1] for line in lines]
