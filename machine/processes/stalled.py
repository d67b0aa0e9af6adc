"""What the kernel tells of a process that stands still: its call, its CPU time, its children."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from machine.processes.activity import letter_of, state_of
from machine.processes.stacks import ASKS, answers
from rundir.atomic import write_text

_MOST_CHILDREN = 16  # of one rank
_ALL_STACKS_S, _STACK_S, _POLL_S = 3.0, 0.3, 0.02
_FILE = Path(__file__).with_suffix(".toml")
_WRITES = ("write", "fsync")
_OF_A_FILE = (*_WRITES, "read", "accept", "recvfrom", "recvmsg")  # by their first argument


def look(pid: int) -> dict[str, Any]:
    """Return the system call that the main thread of a process is in, and its CPU seconds.

    `syscall` is "" if it is in none, or if that may not be read; `syscall_on` is the file or the
    network address that it reads or writes, where the kernel tells.
    """
    call, on = _call_of(pid)
    return {
        "syscall": call,
        "syscall_on": on,
        "cpu_s": _cpu_s(pid),
        "looked_mono": time.monotonic(),
    }


def written_file(pid: int) -> str:
    """Return the file that the main thread of a process is writing; "" if it is writing none."""
    call, descriptor = _call_on(pid)
    if call not in _WRITES:
        return ""
    with contextlib.suppress(OSError):
        file = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
        return file if file.startswith("/") else ""  # no pipe, no socket
    return ""


def children_of(pid: int) -> list[dict[str, Any]]:
    """Return the processes that a process has started: pid, command, and what the kernel says."""
    children = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True)[:_MOST_CHILDREN]:
            with contextlib.suppress(psutil.Error):
                letter, waits_in = state_of(child.pid)
                row = {"pid": child.pid, "state": letter, "waits_in": waits_in}
                is_zombie = letter in ("Z", "")
                command = [] if is_zombie else child.cmdline()
                children.append(row | {"command": " ".join(command)[:200]} | look(child.pid))
    return children


def look_again(about: dict[str, Any], pid: int) -> None:
    """Add `cpu_share` to what `look` returned: the part of a core that was used since."""
    elapsed_s = time.monotonic() - about.pop("looked_mono")
    used_s = max(0.0, _cpu_s(pid) - about.pop("cpu_s"))
    about["cpu_share"] = round(used_s / elapsed_s, 2) if elapsed_s > 0 else 0.0


def write_stacks(files: Mapping[int, Path], children: Mapping[int, list[int]], to: Path) -> None:
    """Write the stacks of forked children of ranks to `to/rankN-childPID.txt`, 3 s at most.

    A fork answers as the rank itself would, in the rank's file; any other child does not answer.
    """
    deadline = time.monotonic() + _ALL_STACKS_S
    for rank, pids in children.items():
        for pid in pids:
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(OSError, StopIteration):
                if text := _stack_of(files[rank], pid):
                    to.mkdir(parents=True, exist_ok=True)
                    write_text(to / f"rank{rank}-child{pid}.txt", text, durable=False)


def _stack_of(file: Path, pid: int) -> str:
    if letter_of(pid) not in ("R", "S") or not answers(pid, file):
        return ""
    begin = size = file.stat().st_size
    os.kill(pid, ASKS)
    deadline = time.monotonic() + _STACK_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        before, size = size, file.stat().st_size
        if before == size > begin:
            break
    return file.read_bytes()[begin:].decode(errors="replace")


@functools.cache
def _calls() -> dict[int, str]:
    """Return the names of the system calls in which a process waits, by number on this machine."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8")).get(platform.machine(), {})
    return {number: call for call, numbers in table.items() for number in numbers}


def _call_of(pid: int) -> tuple[str, str]:
    call, descriptor = _call_on(pid)
    return call, _target(pid, descriptor) if call in _OF_A_FILE else ""


def _call_on(pid: int) -> tuple[str, int]:
    """Return the system call of the main thread and its first argument; "" if it is in none."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text(encoding="utf-8").split()
        return _calls().get(int(words[0]), ""), int(words[1], 16)
    except (OSError, ValueError, IndexError):  # it runs, it is gone, or we may not
        return "", -1


def _target(pid: int, descriptor: int) -> str:
    """Return the file behind a descriptor of a process, or the address at its other end."""
    with contextlib.suppress(OSError, psutil.Error):
        for connection in psutil.Process(pid).net_connections():
            if connection.fd == descriptor:
                place = connection.raddr or connection.laddr
                return f"{place[0]}:{place[1]}" if len(place) > 1 else "a socket"
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    return ""


def _cpu_s(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return 0.0
