"""A real memory cgroup with a limit, for a measurement or a test: a small machine in this one."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine.memory.host_memory import Cgroup, memory_groups

_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_GONE_S = 10.0


class NoCgroupError(Exception):
    """No memory cgroup can be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A cgroup that contains only processes started through `command`."""

    group: Cgroup

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """Return a command that runs `command` inside the group."""
        return ["sh", "-c", _ENTER, str(self.group.folder), *map(str, command)]

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        text = (self.group.folder / "cgroup.procs").read_text(encoding="ascii")
        return [int(line) for line in text.split()]


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """Create a group limited to `limit_bytes`, including swap; kill what is left in it afterwards.

    Raises NoCgroupError if none can be made: that takes root, or a delegated cgroup v2.
    """
    found = MemoryCgroup(_make(limit_bytes))
    try:
        yield found
    finally:
        _remove(found)


def _make(limit_bytes: int) -> Cgroup:
    above = memory_groups()
    if not above:
        raise NoCgroupError("this process is in no memory cgroup that can be seen from here")
    reasons = []
    for parent in above:  # in v2 the innermost has processes, and so may have no child
        group = Cgroup(
            parent.folder / f"airlock-{os.getpid()}-{secrets.token_hex(2)}", parent.version
        )
        try:
            group.folder.mkdir()
        except OSError as error:
            reasons.append(f"{parent.folder}: {error.strerror}")
            continue
        try:
            _limit(group, limit_bytes)
        except (OSError, subprocess.CalledProcessError) as error:
            group.folder.rmdir()
            reasons.append(f"{parent.folder}: {error}")
        else:
            return group
    raise NoCgroupError(f"no memory cgroup can be made: {'; '.join(reasons)}")


def _limit(group: Cgroup, limit_bytes: int) -> None:
    """Set the limit and check that a process can enter. Raises OSError, CalledProcessError."""
    memory, swap, swap_bytes = {
        1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes),
        2: ("memory.max", "memory.swap.max", 0),
    }[group.version]
    if not (group.folder / memory).exists():
        raise FileNotFoundError(f"its groups have no {memory}")
    (group.folder / memory).write_text(str(limit_bytes), encoding="ascii")
    with contextlib.suppress(FileNotFoundError, PermissionError):  # a kernel without swap accounts
        (group.folder / swap).write_text(str(swap_bytes), encoding="ascii")
    subprocess.run(MemoryCgroup(group).command(["true"]), check=True, capture_output=True)


def _remove(cgroup: MemoryCgroup) -> None:
    deadline = time.monotonic() + _GONE_S
    while True:
        for pid in cgroup.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            cgroup.group.folder.rmdir()
        except OSError:  # its processes are still ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
