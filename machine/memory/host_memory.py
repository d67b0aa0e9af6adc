"""The total and available memory of this host, or of the container this process is in.

The kernel ends processes when either runs out: the memory of the machine, or that of a control
group (cgroup) of this process or a parent of that group. The page cache is reclaimed when memory is
needed, so it counts as available in both.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from machine.cgroups import own_groups
from machine.mounts import PROC

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 reports a number of about this size for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Available and total memory, and the host or cgroup that they are of."""

    available_bytes: int
    total_bytes: int
    where: str


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A memory cgroup; its version decides the names of its files."""

    folder: Path
    version: int

    def limit_bytes(self) -> int | None:
        """Return the group's own limit, or None. Raises OSError if the group is gone."""
        names = ("memory.limit_in_bytes",) if self.version == 1 else ("memory.max", "memory.high")
        numbers = [self._number(name) for name in names]
        limits = [value for value in numbers if value is not None and value < _NO_LIMIT_BYTES]
        return min(limits, default=None)

    def available_bytes(self, limit_bytes: int) -> int:
        """Return what is left below the limit, in bytes, counting the page cache as free.

        See memory.stat in the kernel's documents cgroup-v1/memory and cgroup-v2.
        """
        stat = _fields(self.folder / "memory.stat")
        total = "total_" if self.version == 1 else ""  # v2's figures include child groups
        cache = stat[f"{total}inactive_file"] + stat[f"{total}active_file"]
        cache += stat.get("slab_reclaimable", 0)
        used = self._number("memory.usage_in_bytes" if self.version == 1 else "memory.current")
        return max(0, limit_bytes - (used or 0) + cache)

    def swap_bytes(self, limit_bytes: int, host_free_bytes: int) -> int:
        """Return how much its processes could still move to the host's free swap, in bytes.

        v1 limits memory and swap together, v2 swap alone; without swap accounting neither does.
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
        """Return the number of processes in the group that the kernel's OOM killer has ended."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _fields(self.folder / name).get("oom_kill", 0)

    def _number(self, name: str) -> int | None:
        try:
            text = (self.folder / name).read_text(encoding="ascii").strip()
        except FileNotFoundError:  # not every kernel has memory.high
            return None
        return None if text == "max" else int(text)


class HostMemory:
    """The memory that this process and its children share with all other processes."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    @cached_property
    def groups(self) -> list[Cgroup]:
        """The memory cgroups of this process, innermost first; they do not change."""
        return memory_groups(self._proc)

    def now(self, *, with_swap: bool = False) -> Available:
        """Return the tightest bound on available memory; `with_swap` adds free swap."""
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
            except OSError:  # the group is gone, which is possible once this process was moved
                continue
        return min(bounds, key=lambda bound: bound.available_bytes)

    @property
    def is_limited(self) -> bool:
        """True if a cgroup limits it, so that others on the machine have memory of their own."""
        return any(group.limit_bytes() is not None for group in self.groups)

    def num_oom_kills(self) -> int:
        """Return the number of OOM kills so far, in the innermost group or on the host."""
        if self.groups:
            return self.groups[0].num_oom_kills()
        return _fields(Path("/proc/vmstat")).get("oom_kill", 0)


def host_swap_free_bytes() -> int:
    """Return the host's free swap, in bytes."""
    return _fields(Path("/proc/meminfo")).get("SwapFree:", 0) * 1024


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Return memory and swap of the physical machine, in bytes, whatever a container is allowed.

    Some containers show their own limit as MemTotal (lxcfs), so the kernel's other figures are
    asked as well: sysinfo(2), NUMA nodes and memory blocks in sysfs. The largest is the machine's.
    """
    sizes_bytes = [_bytes_in_meminfo(root), _bytes_in_nodes(root), _bytes_in_blocks(root)]
    if root == Path("/"):
        sizes_bytes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    swap = _fields_or_none(root / "proc/meminfo").get("SwapTotal:", 0) * 1024
    return max(sizes_bytes) + swap


def _bytes_in_meminfo(root: Path) -> int:
    return _fields_or_none(root / "proc/meminfo").get("MemTotal:", 0) * 1024


def _bytes_in_nodes(root: Path) -> int:
    """Return the sum of all nodes' MemTotal, from lines such as `Node 0 MemTotal: 4096 kB`."""
    total = 0
    for file in (root / "sys/devices/system/node").glob("node[0-9]*/meminfo"):
        with contextlib.suppress(OSError):
            for line in file.read_text(encoding="ascii").splitlines():
                words = line.split()
                total += int(words[3]) * 1024 if words[2:3] == ["MemTotal:"] else 0
    return total


def _bytes_in_blocks(root: Path) -> int:
    """Return the size of all memory blocks that are online (the kernel's memory-hotplug.rst)."""
    folder = root / "sys/devices/system/memory"
    try:
        block_bytes = int((folder / "block_size_bytes").read_text(encoding="ascii"), 16)
        states = [file.read_text(encoding="ascii") for file in folder.glob("memory[0-9]*/state")]
    except (OSError, ValueError):
        return 0
    return block_bytes * sum(state.strip() == "online" for state in states)


def _fields_or_none(path: Path) -> dict[str, int]:
    try:
        return _fields(path)
    except OSError:
        return {}


def memory_groups(proc: Path = PROC) -> list[Cgroup]:
    """Return the memory cgroups of this process, innermost first; none if there are no cgroups."""
    # The root group of v2 has neither such a file nor a limit.
    files = {1: "memory.usage_in_bytes", 2: "memory.max"}
    try:
        groups = own_groups("memory", proc)
    except FileNotFoundError:  # not Linux
        return []
    return [
        Cgroup(folder, version) for folder, version in groups if (folder / files[version]).exists()
    ]


def _fields(path: Path) -> dict[str, int]:
    """Return the fields of a file with lines `name number`."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split()[:2] for line in lines)}
