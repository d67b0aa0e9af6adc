"""Activity of processes as the kernel counts it: bytes read and written, CPU time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from rundir.paths import RunDir
from rundir.process_id import stat_fields


def all_io_bytes(pids: Iterable[int]) -> tuple[int, int]:
    """Return the bytes that these processes and their descendants have read and written so far.

    First those from and to files, pipes and the like, by calls that have ended; then those from and
    to disks, which grow within a call that writes a large tensor, and while a mapped file is read.
    They are counted in whole pages, so a line in a log is 4 KiB. Both are 0 if unavailable.
    """
    called = disk = 0
    for process in _with_descendants(pids):
        with contextlib.suppress(psutil.Error, AttributeError, NotImplementedError):
            counted = process.io_counters()
            called += counted.read_chars + counted.write_chars
            disk += counted.read_bytes + counted.write_bytes
    return called, disk


def busy_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds used so far by these processes and their descendants."""
    total = 0.0
    for process in _with_descendants(pids):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def _with_descendants(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            yield from (process, *_descendants(process))


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants, as the kernel lists them where it does.

    psutil reads the parent of every process of the machine, which takes 20 ms on a busy one.
    """
    if not Path("/proc/self/task").exists() or not next(_children_files(os.getpid())).exists():
        return process.children(recursive=True)
    descendants: list[psutil.Process] = []
    todo = [process.pid]
    while todo:
        for file in _children_files(todo.pop()):
            with contextlib.suppress(OSError, psutil.Error):  # the thread or child has ended
                pids = [int(pid) for pid in file.read_text(encoding="utf-8").split()]
                descendants += [psutil.Process(pid) for pid in pids]
                todo += pids
    return descendants


def _children_files(pid: int) -> Iterator[Path]:
    """Yield for each thread of a process the file with its children."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield task / "children"


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
    letter, where = letter_of(pid), ""
    if letter:
        with contextlib.suppress(OSError):
            where = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8").strip("\0\n ")
    return letter, "" if where == "0" else where


def letter_of(pid: int) -> str:
    """Return the state letter of a process alone, as `state_of`, which costs twice as much."""
    try:
        return stat_fields(pid)[0]
    except OSError:
        return ""
