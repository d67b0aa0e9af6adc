"""The most memory that a process and those below it have had, as the kernel keeps it for each."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from rundir.units import size_text

_EVERY_S = 0.2  # to find all children the whole process table is read


def high_water(pid: int | str) -> dict[str, int]:
    """VmHWM and VmPeak of a process in bytes: the most resident, the most addresses reserved.

    Empty where it is gone, or a zombie, or there is no /proc.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines() if line.startswith(("VmHWM:", "VmPeak:")))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


class Peaks:
    """Of the largest process among `pid` and all below it, in bytes; 0 where nothing is known.

    Both are figures of one process, as limits and memory are: what several share is counted once.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = 0.0
        self.rss_bytes = 0
        self.vm_bytes = 0

    def look(self) -> None:
        """Take note, as often as one likes: whoever has ended cannot be asked any more."""
        pids, now = [self._pid], time.monotonic()
        if now - self._looked >= _EVERY_S:
            self._looked = now
            with contextlib.suppress(psutil.NoSuchProcess):
                pids += [one.pid for one in psutil.Process(self._pid).children(recursive=True)]
        for figures in map(high_water, pids):
            self.rss_bytes = max(self.rss_bytes, figures.get("VmHWM", 0))
            self.vm_bytes = max(self.vm_bytes, figures.get("VmPeak", 0))

    @property
    def rss_text(self) -> str:
        """The most resident, for people."""
        return size_text(self.rss_bytes) if self.rss_bytes else "-"

    @property
    def vm_text(self) -> str:
        """The most addresses reserved, for people."""
        return size_text(self.vm_bytes) if self.vm_bytes else "-"
