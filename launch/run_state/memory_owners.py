"""Who of a run holds how much memory: a rank with all it has started, or another child."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from launch.run_state.state import RunState

_COUNTED = ("RssAnon:", "VmSwap:")


@dataclass(slots=True)
class Holder:
    """One bearer of memory. `held_bytes` is anonymous memory, swapped out or not.

    It is read from the kernel's counters: dividing shared pages would take walking page tables,
    too long when memory is about to run out. So forks count what they share with the zygote.
    """

    who: str
    rank: int | None
    phase: str
    held_bytes: int = 0
    processes: list[psutil.Process] = field(default_factory=list)


def holders(state: RunState, processes: Sequence[psutil.Process]) -> list[Holder]:
    """What of `processes`, parents before children, bears how much."""
    rows = {row.pid: row for row in state.status.ranks if row.pid is not None}
    of_pid: dict[int, Holder] = {}
    found: dict[str, Holder] = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent, row = of_pid.get(process.ppid()), rows.get(process.pid)
            if row is not None:
                holder = Holder(f"rank {row.rank}", row.rank, row.phase)
            elif parent is not None and parent.rank is not None:
                holder = parent
            else:
                holder = _no_rank(state, is_agent=parent is None)
            holder = found.setdefault(holder.who, holder)
            holder.held_bytes += held_bytes(process.pid)
            holder.processes.append(process)
            of_pid[process.pid] = holder
    return list(found.values())


def _no_rank(state: RunState, *, is_agent: bool) -> Holder:
    """The bearer of a process that is no rank, nor below one."""
    if state.status.phase == "preparing":
        return Holder("the process that prepares model and data", None, "preparing")
    if is_agent:
        return Holder("torch's agent", None, "spawn")
    return Holder("the zygote", None, "loading" if "loading" in state.zygote else "importing")


def held_bytes(pid: int) -> int:
    """Anonymous memory of one process, resident and swapped out; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = (line.split() for line in lines.splitlines() if line.startswith(_COUNTED))
    return sum(int(number) for _, number, _ in fields) * 1024


def fastest(found: Sequence[Holder], before: Mapping[str, int], least_bytes: int) -> Holder | None:
    """Who has grown most since `before`, if by `least_bytes`: who grows is likely the cause."""

    def growth(holder: Holder) -> int:
        return holder.held_bytes - before.get(holder.who, 0)

    growing = [holder for holder in found if growth(holder) >= least_bytes]
    return max(growing, key=growth, default=None)


def largest(found: Sequence[Holder], least_bytes: int) -> Holder | None:
    """Who holds most; None when nobody holds `least_bytes`: ending one would not help."""
    worth_it = [holder for holder in found if holder.held_bytes >= least_bytes]
    return max(worth_it, key=lambda holder: holder.held_bytes, default=None)
