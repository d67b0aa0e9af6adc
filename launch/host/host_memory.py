"""How much memory this host, or the container this process is in, has and can still give.

The kernel ends processes when either runs out: the machine's memory, or that of a control group
(cgroup) which this process or one of its parents is in. File cache is given back when something
else needs the room, so it counts as free, in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from launch.host.cgroups import own_groups
from launch.host.mounts import PROC

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a number of about this size for "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What can still be had, of how much, and who sets that bound."""

    available_bytes: int
    total_bytes: int
    where: str


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A memory cgroup with the names that its version has for things."""

    folder: Path
    version: int

    def limit_bytes(self) -> int | None:
        """Its own limit, or None. Raises OSError when the group is gone."""
        names = ("memory.limit_in_bytes",) if self.version == 1 else ("memory.max", "memory.high")
        found = [self._number(name) for name in names]
        limits = [value for value in found if value is not None and value < _NO_LIMIT_BYTES]
        return min(limits, default=None)

    def available_bytes(self, limit_bytes: int) -> int:
        """What is left below the limit: cgroup-v1/memory and cgroup-v2, memory.stat."""
        stat = _fields(self.folder / "memory.stat")
        total = "total_" if self.version == 1 else ""  # v2's figures include the groups below
        cache = stat[f"{total}inactive_file"] + stat[f"{total}active_file"]
        cache += stat.get("slab_reclaimable", 0)
        used = self._number("memory.usage_in_bytes" if self.version == 1 else "memory.current")
        return max(0, limit_bytes - (used or 0) + cache)

    def swap_bytes(self, limit_bytes: int, host_free_bytes: int) -> int:
        """What its processes could still move to the host's free swap.

        v1 limits memory and swap together, v2 swap alone; neither where swap is not accounted for.
        """
        if self.version == 1:
            both = self._number("memory.memsw.limit_in_bytes")
            used_of_both = self._number("memory.memsw.usage_in_bytes")
            if both is None or used_of_both is None:
                return host_free_bytes
            unused = limit_bytes - (self._number("memory.usage_in_bytes") or 0)
            own_bytes = both - used_of_both - unused
        else:
            swap_max = self._number("memory.swap.max")
            if swap_max is None:
                return host_free_bytes
            own_bytes = swap_max - (self._number("memory.swap.current") or 0)
        return max(0, min(host_free_bytes, own_bytes))

    def num_oom_kills(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _fields(self.folder / name).get("oom_kill", 0)

    def _number(self, name: str) -> int | None:
        try:
            text = (self.folder / name).read_text(encoding="ascii").strip()
        except FileNotFoundError:  # memory.high is not on every kernel
            return None
        return None if text == "max" else int(text)


class HostMemory:
    """The memory that this process and its children share with all others."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    @cached_property
    def groups(self) -> list[Cgroup]:
        """The memory cgroups this process is in, innermost first; they do not change."""
        return memory_groups(self._proc)

    def now(self, *, with_swap: bool = False) -> Available:
        """The tightest bound on what can still be had, `with_swap` also by swapping."""
        host = psutil.virtual_memory()
        swap_bytes = host_swap_free_bytes() if with_swap else 0
        bounds = [
            Available(
                available_bytes=host.available + swap_bytes,
                total_bytes=host.total,
                where="the host",
            )
        ]
        for group in self.groups:
            try:
                limit = group.limit_bytes()
                if limit is not None:
                    swappable = group.swap_bytes(limit, swap_bytes) if swap_bytes else 0
                    bounds.append(
                        Available(
                            available_bytes=group.available_bytes(limit) + swappable,
                            total_bytes=limit,
                            where=f"the cgroup {group.folder}",
                        )
                    )
            except OSError:  # it was removed, as it can be when this process has been moved
                continue
        return min(bounds, key=lambda bound: bound.available_bytes)

    @property
    def is_limited(self) -> bool:
        """Whether a cgroup bounds it, so that others on the machine have memory of their own."""
        return any(group.limit_bytes() is not None for group in self.groups)

    def num_oom_kills(self) -> int:
        """Processes killed for want of memory so far, in the innermost group or on the host."""
        if self.groups:
            return self.groups[0].num_oom_kills()
        return _fields(Path("/proc/vmstat")).get("oom_kill", 0)


def host_swap_free_bytes() -> int:
    """The host's free swap."""
    return _fields(Path("/proc/meminfo")).get("SwapFree:", 0) * 1024


def memory_groups(proc: Path = PROC) -> list[Cgroup]:
    """The memory cgroups of this process, innermost first; none where there are no cgroups."""
    # The root group of v2 has no such file, and no limit either.
    files = {1: "memory.usage_in_bytes", 2: "memory.max"}
    try:
        found = own_groups("memory", proc)
    except FileNotFoundError:  # not Linux
        return []
    return [
        Cgroup(folder, version) for folder, version in found if (folder / files[version]).exists()
    ]


def _fields(path: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split()[:2] for line in lines)}
