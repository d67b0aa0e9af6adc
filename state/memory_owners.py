"""The memory of a run by owner: a rank with everything it has started, or another child."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from state.run_state import RunState

_COUNTED = ("RssAnon:", "VmSwap:")


@dataclass(slots=True)
class MemoryOwner:
    """One owner of memory; `held_bytes` is anonymous memory, resident or swapped out.

    It is read from the kernel's counters: dividing up shared pages would require walking page
    tables, which takes too long when memory is about to run out. So forks count what they share
    with the zygote.
    """

    who: str
    rank: int | None
    phase: str
    held_bytes: int = 0
    processes: list[psutil.Process] = field(default_factory=list)


def memory_owners(state: RunState, processes: Sequence[psutil.Process]) -> list[MemoryOwner]:
    """Return the owners of `processes`, given parents before children, with what each holds."""
    rows = {row.pid: row for row in state.status.ranks if row.pid is not None}
    of_pid: dict[int, MemoryOwner] = {}
    owners: dict[str, MemoryOwner] = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent, row = of_pid.get(process.ppid()), rows.get(process.pid)
            if row is not None:
                owner = MemoryOwner(f"rank {row.rank}", row.rank, row.phase)
            elif parent is not None and parent.rank is not None:
                owner = parent
            else:
                owner = _no_rank(state, is_agent=parent is None)
            owner = owners.setdefault(owner.who, owner)
            owner.held_bytes += held_bytes(process.pid)
            owner.processes.append(process)
            of_pid[process.pid] = owner
    return list(owners.values())


def _no_rank(state: RunState, *, is_agent: bool) -> MemoryOwner:
    """Return the owner of a process that is neither a rank nor below one."""
    if state.status.phase == "preparing":
        return MemoryOwner("the process that prepares model and data", None, "preparing")
    if is_agent:
        return MemoryOwner("torch's agent", None, "spawn")
    return MemoryOwner("the zygote", None, "loading" if "loading" in state.zygote else "importing")


def held_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, resident and swapped out, in bytes; 0 if gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = (line.split() for line in lines.splitlines() if line.startswith(_COUNTED))
    return sum(int(number) for _, number, _ in fields) * 1024


def fastest(
    owners: Sequence[MemoryOwner], before: Mapping[str, int], least_bytes: int
) -> MemoryOwner | None:
    """Return the owner that has grown most since `before`, or None if none by `least_bytes`.

    The owner that grows is likely the cause.
    """

    def grown_bytes(owner: MemoryOwner) -> int:
        return owner.held_bytes - before.get(owner.who, 0)

    growing = [owner for owner in owners if grown_bytes(owner) >= least_bytes]
    return max(growing, key=grown_bytes, default=None)


def largest(owners: Sequence[MemoryOwner], least_bytes: int) -> MemoryOwner | None:
    """Return the owner that holds most, or None if none holds `least_bytes`.

    Ending a smaller one would not help.
    """
    worth_it = [owner for owner in owners if owner.held_bytes >= least_bytes]
    return max(worth_it, key=lambda owner: owner.held_bytes, default=None)
