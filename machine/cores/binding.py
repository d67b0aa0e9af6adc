"""The binding of this process to cores and to the memory of a NUMA node, as `launch` planned it.

Runs in ranks and the zygote, before they start threads: new threads and children inherit both.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from machine.cores.cores import remember_affinity

NUMA_VARIABLE = "AIRLOCK_RANK_CORES"  # passes the plan (machine/cores/numa.py) to the ranks

# linux/mempolicy.h. Preferred, not bound: a node that is full must not end a rank by OOM.
DEFAULT, PREFERRED, INTERLEAVE = 0, 1, 3
# Numbers of set_mempolicy and get_mempolicy (asm/unistd_64.h, asm-generic/unistd.h); glibc has no
# functions for them, and libnuma is rarely installed.
_SYSCALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
_BITS = 64  # of an unsigned long
_WORDS = 16  # the kernel's largest number of nodes is 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where this process has been bound; the fields of the `numa` event.

    `memory` is `preferred` or `interleaved`, or the reason why memory is placed as ever. Without a
    `numa_node` the cores are those it had before.
    """

    numa_node: int | None
    cores: str
    memory: str


def bind_rank(environ: Mapping[str, str], local_rank: int) -> Bound | None:
    """Bind this process to its rank's cores and node; None if it is not to be bound.

    A rank that is not bound gets the kernel's default placement of memory, as it may have inherited
    the zygote's. The caller is the only thread.
    """
    places = environ.get(NUMA_VARIABLE, "").split()
    place = places[local_rank] if local_rank < len(places) else "-"
    if place == "-":
        if places:
            set_memory_policy(DEFAULT, ())
        return None
    node, _, listed = place.partition(":")
    remember_affinity()
    try:
        os.sched_setaffinity(0, parse_cores(listed))
    except OSError as error:  # the cpuset has changed since `launch` looked
        set_memory_policy(DEFAULT, ())
        return Bound(numa_node=None, cores="", memory=f"as ever: cores {listed}: {error.strerror}")
    refused = set_memory_policy(PREFERRED, (int(node),))
    return Bound(numa_node=int(node), cores=listed, memory=refused or "preferred")


def spread_pages(environ: Mapping[str, str]) -> Bound | None:
    """Spread the memory that this process touches from now on over the ranks' nodes.

    Returns None if there are not two of them. What one process reads for all ranks would otherwise
    lie on one node, and half of the ranks read it across the socket.
    """
    places = [place for place in environ.get(NUMA_VARIABLE, "").split() if place != "-"]
    nodes = sorted({int(place.partition(":")[0]) for place in places})
    if len(nodes) < 2:  # noqa: PLR2004 - one node is no spread
        return None
    refused = set_memory_policy(INTERLEAVE, nodes)
    return Bound(numa_node=None, cores="", memory=refused or "interleaved")


@contextmanager
def pages_spread(environ: Mapping[str, str], local_rank: int) -> Iterator[bool]:
    """Spread pages over the ranks' nodes in the block, then return to those of this rank.

    Yields whether they are spread.
    """
    spread = spread_pages(environ)
    try:
        yield spread is not None and spread.memory == "interleaved"
    finally:
        if spread is not None:
            place = environ[NUMA_VARIABLE].split()[local_rank]
            nodes = () if place == "-" else (int(place.partition(":")[0]),)
            set_memory_policy(PREFERRED if nodes else DEFAULT, nodes)


def set_memory_policy(mode: int, nodes: Collection[int]) -> str:
    """Set this thread's memory policy (set_mempolicy(2)); return why not, "" if it is set."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        return f"as ever: memory policies are not known on {platform.machine()}"
    mask = (ctypes.c_ulong * _WORDS)()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel takes one bit less than it is told.
    bits = ctypes.c_ulong(_WORDS * _BITS + 1)
    if libc.syscall(ctypes.c_long(numbers[0]), ctypes.c_long(mode), mask, bits) == 0:
        return ""
    code = ctypes.get_errno()
    may = "; `docker run --cap-add SYS_NICE` allows it" if code == errno.EPERM else ""
    return f"as ever: set_mempolicy is refused: {os.strerror(code)}{may}"


def memory_policy() -> int | None:
    """Return the mode of this thread's memory policy, or None if it cannot be asked."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        return None
    mode = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_void_p()
    zero = ctypes.c_ulong(0)
    done = libc.syscall(ctypes.c_long(numbers[1]), ctypes.byref(mode), none, zero, none, zero)
    return mode.value if done == 0 else None


def parse_cores(listed: str) -> set[int]:
    """Parse a list of cores as the kernel writes it: 0-3,8. Raises ValueError."""
    spans = [part.partition("-") for part in listed.strip().split(",") if part]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def cores_text(cores: Collection[int]) -> str:
    """Return the cores as the kernel writes them: 0-3,8."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
