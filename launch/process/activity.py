"""What processes do, as the kernel counts it: bytes they read and write, time they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

from rundir.paths import RunDir


def io_bytes(pids: Iterable[int]) -> int:
    """Bytes that they have read and written so far, of files and the like; 0 if it is not told."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, AttributeError, NotImplementedError):
            counted = psutil.Process(pid).io_counters()
            total += counted.read_chars + counted.write_chars
    return total


def busy_s(pids: Iterable[int]) -> float:
    """Seconds that they, and all that they have started, have computed so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += sum(one.cpu_times()[:2])
    return total


def output_bytes(run: RunDir, attempt: int) -> int:
    """What its ranks have printed so far, in bytes."""
    total = 0
    for log in run.rank_log(0, attempt).parent.glob("rank*.log"):
        with contextlib.suppress(OSError):
            total += log.stat().st_size
    return total


def state_of(pid: int) -> tuple[str, str]:
    """(the kernel's letter for what it does, where in the kernel it waits).

    `R` runs, `S` sleeps, `D` waits in the kernel and cannot be ended, `T` was stopped, `t` is held
    by a debugger, `Z` has ended; "" of one that is gone.
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
