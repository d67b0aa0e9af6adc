"""Peak memory of a process and its descendants, as the kernel records it for each."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from rundir.units import size_text

_EVERY_S = 0.2  # finding all children reads the whole process table


def high_water(pid: int | str) -> dict[str, int]:
    """Return VmHWM and VmPeak of a process, in bytes: its peak RSS and peak address space.

    The result is empty if the process is gone or a zombie, or if there is no /proc.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines() if line.startswith(("VmHWM:", "VmPeak:")))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


class Peaks:
    """Peaks of the largest process among `pid` and its descendants, in bytes; 0 if unknown.

    Each is the figure of a single process, so memory shared by several is counted once.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = 0.0
        self.rss_bytes = 0
        self.vm_bytes = 0

    def look(self) -> None:
        """Update the peaks. Call it often: a process that has ended can no longer be measured."""
        self._note(self._pid)  # at once: it may end while its children are being looked for
        now = time.monotonic()
        if now - self._looked >= _EVERY_S:
            self._looked = now
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self._pid).children(recursive=True):
                    self._note(child.pid)

    def _note(self, pid: int) -> None:
        figures = high_water(pid)
        self.rss_bytes = max(self.rss_bytes, figures.get("VmHWM", 0))
        self.vm_bytes = max(self.vm_bytes, figures.get("VmPeak", 0))

    @property
    def rss_text(self) -> str:
        """The peak RSS as text."""
        return size_text(self.rss_bytes) if self.rss_bytes else "-"

    @property
    def vm_text(self) -> str:
        """The peak address space as text."""
        return size_text(self.vm_bytes) if self.vm_bytes else "-"
