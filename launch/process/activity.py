"""Activity of processes as the kernel counts it: bytes read and written, CPU time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

from rundir.paths import RunDir


def io_bytes(pids: Iterable[int]) -> int:
    """Return the bytes read from and written to files and the like so far; 0 if unavailable."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, AttributeError, NotImplementedError):
            counted = psutil.Process(pid).io_counters()
            total += counted.read_chars + counted.write_chars
    return total


def busy_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds used so far by these processes and their descendants."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += sum(one.cpu_times()[:2])
    return total


def output_bytes(run: RunDir, attempt: int) -> int:
    """Return how much the ranks of an attempt have printed so far, in bytes."""
    total = 0
    for log in run.rank_log(0, attempt).parent.glob("rank*.log"):
        with contextlib.suppress(OSError):
            total += log.stat().st_size
    return total


def state_of(pid: int) -> tuple[str, str]:
    """Return (state letter, kernel function it waits in) of a process.

    `R` is running, `S` sleeping, `D` in uninterruptible sleep, `T` stopped, `t` stopped by a
    debugger, `Z` a zombie. Both are "" if the process is gone.
    """
    folder = Path(f"/proc/{pid}")
    try:
        letter = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "", ""
    where = ""
    with contextlib.suppress(OSError):
        where = (folder / "wchan").read_text(encoding="utf-8").strip("\0\n ")
    return letter, "" if where == "0" else where
