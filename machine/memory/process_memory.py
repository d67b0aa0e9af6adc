"""Memory of a process as measured by the kernel, its peaks, and the MEM lines that report it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from rundir.units import MIB, size_text

_HAS_PROC = Path("/proc/self/smaps_rollup").exists()
_EVERY_S = 0.2  # finding all children reads the whole process table


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One measurement of this process, in bytes; the fields are those of the memory events."""

    rss_bytes: int
    pss_anon_bytes: int
    vms_bytes: int
    host_available_bytes: int
    gpu_used_bytes: int | None

    def line(self) -> str:
        """Return the figures as MEM lines show them."""
        gpu = "-" if self.gpu_used_bytes is None else f"{self.gpu_used_bytes // MIB}MiB"
        return (
            f"rss={self.rss_bytes // MIB}MiB pss_anon={self.pss_anon_bytes // MIB}MiB "
            f"vms={self.vms_bytes // MIB}MiB host_available={self.host_available_bytes // MIB}MiB "
            f"gpu={gpu}"
        )


def measure() -> Memory:
    """Measure the memory of this process."""
    own = psutil.Process().memory_info()
    return Memory(
        rss_bytes=own.rss,
        pss_anon_bytes=smaps_rollup("self")["Pss_Anon"],
        vms_bytes=own.vms,
        host_available_bytes=psutil.virtual_memory().available,
        gpu_used_bytes=_gpu_used_bytes(),
    )


def smaps_rollup(pid: int | str) -> dict[str, int]:
    """Return the fields of /proc/PID/smaps_rollup, in bytes (Pss, Pss_Anon, Private_Dirty…).

    RSS counts a file page once for each process that maps it; PSS divides it among them. Where
    there is no /proc (macOS), Pss and Pss_Anon are both the unique set size: the memory that would
    be freed if the process ended. Raises OSError if the process is gone or not ours.
    """
    if not _HAS_PROC:
        return _unique(pid)
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value, *_ = line.replace(":", " ").split()
        fields[name] = int(value) * 1024
    return fields


def _unique(pid: int | str) -> dict[str, int]:
    try:
        own = psutil.Process(None if pid == "self" else int(pid)).memory_full_info().uss
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from error
    return {"Pss": own, "Pss_Anon": own}


def tree_memory() -> dict[str, int]:
    """Return the memory of this process and its descendants: the fields of the `host` metric."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    pss = anon = count = 0
    for process in processes:
        with contextlib.suppress(OSError, KeyError):  # it ended meanwhile
            fields = smaps_rollup(process.pid)
            pss, anon, count = pss + fields["Pss"], anon + fields["Pss_Anon"], count + 1
    return {
        "pss_bytes": pss,
        "pss_anon_bytes": anon,
        "num_processes": count,
        "available_bytes": psutil.virtual_memory().available,
    }


def _gpu_used_bytes() -> int | None:
    """Return the memory in use on this rank's GPU; None unless CUDA is initialised.

    Asking must not initialise it. Only the main thread has the rank's GPU as its current device:
    another thread would ask the first GPU, and create a context there.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    if threading.current_thread() is not threading.main_thread():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


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
