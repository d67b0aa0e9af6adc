"""The NUMA node of each rank's GPU, and the cores of that node that the rank gets.

Memory of another socket is reached across the link between them. So each rank runs on cores of the
node that its GPU is connected to; ranks of the same node share its cores evenly, whole physical
cores each. The plan is made by the launcher; ranks carry it out (machine/cores/binding.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml as nv

from machine.cores.binding import DEFAULT, NUMA_VARIABLE, cores_text, memory_policy, parse_cores
from machine.cores.cores import threads_in
from machine.gpus.devices import Gpu
from rundir.config import LaunchConfig

_SYS = Path("/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The place of one rank. `why_not` is why it is not bound; then it has no cores."""

    gpu: str  # as shown to people
    node: int = -1  # -1: not known
    cores: tuple[int, ...] = ()
    why_not: str = ""

    def in_words(self) -> str:
        """Return the node and cores as text, or why the rank is not bound."""
        if self.why_not:
            return f"{self.gpu}: not bound: {self.why_not}"
        return f"{self.gpu}: node {self.node}, cores {cores_text(self.cores)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """The places of all ranks by local rank, or why none is bound."""

    ranks: tuple[Binding, ...] = ()
    why_not: str = ""
    is_unknown: bool = False  # there are nodes, but the kernel does not know those of the GPUs

    @property
    def fewest_cores(self) -> int | None:
        """The number of cores of the rank that has fewest, or None if no rank is bound."""
        return min((len(rank.cores) for rank in self.ranks if rank.cores), default=None)

    def value(self) -> str:
        """Return the value of AIRLOCK_RANK_CORES: each local rank's NODE:CORES, or `-`."""
        return " ".join(
            f"{rank.node}:{cores_text(rank.cores)}" if rank.cores else "-" for rank in self.ranks
        )

    def lines(self) -> list[str]:
        """Return a line for each rank, or one that says why none is bound."""
        if self.why_not:
            return [f"  not bound: {self.why_not}"]
        return [f"  rank {rank}: {binding.in_words()}" for rank, binding in enumerate(self.ranks)]

    def complaints(self) -> list[str]:
        """Return the lines that a run starts with: for ranks that should be bound and are not."""
        left = [line for line in self.lines() if ": not bound: " in line]
        if self.is_unknown:
            left = [f"ranks are not bound to NUMA nodes: {self.why_not}"]
        return [f"airlock: {line.strip()}" for line in left]


NOT_ASKED = Bindings(why_not="it was not asked for")


def bind_ranks(launch: LaunchConfig, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Bindings:
    """Return where the rank of each GPU is to run, on this machine."""
    if not gpus:
        return Bindings(why_not="the ranks are on CPU")
    if launch.numa == "off":
        return Bindings(why_not="launch.numa is off")
    if not hasattr(os, "sched_getaffinity"):
        return Bindings(why_not="this is not Linux")
    if environ.get(NUMA_VARIABLE):  # a run within a run
        return Bindings(why_not=f"{NUMA_VARIABLE} is set: this is a rank of another run")
    if memory_policy() not in (None, DEFAULT):
        return Bindings(why_not="whoever started this has set a memory policy (numactl)")
    wanted = launch.threads_per_rank or threads_in(environ.get("OMP_NUM_THREADS", ""))
    return plan(gpus, pci_addresses(gpus), os.sched_getaffinity(0), num_threads=wanted)


def plan(
    gpus: Sequence[Gpu],
    addresses: Sequence[str],
    allowed: set[int],
    *,
    num_threads: int = 0,
    sys: Path = _SYS,
) -> Bindings:
    """Return where the rank of each GPU is to run.

    `addresses` are the GPUs' PCI addresses as in sysfs, "" if unknown; `allowed` are the cores that
    this process may use. If a user wants more threads in a rank than its share has cores
    (`num_threads`), ranks get all cores of their node. `sys` is where sysfs is mounted.
    """
    nodes = nodes_in(sys)
    if len(nodes) < 2:  # noqa: PLR2004 - one node is the whole machine
        return Bindings(why_not="the machine has one NUMA node" if nodes else "no NUMA nodes known")
    places = [node_of(address, sys) for address in addresses]
    if not any(place in nodes for place in places):
        return Bindings(why_not="the kernel knows no GPU's NUMA node", is_unknown=True)
    bindings: list[Binding] = []
    for index, (gpu, address, node) in enumerate(zip(gpus, addresses, places, strict=True)):
        beside = [other for other, place in enumerate(places) if place == node]
        own = nodes.get(node, set()) & allowed
        cores = _share(_physical(own, sys), beside.index(index), len(beside))
        why = ""
        if node not in nodes:
            why = "its NUMA node is unknown"
        elif not own:
            why = f"no core of its node {node} may be used (a cpuset, taskset or a job's queue)"
        elif not cores:
            why = f"{len(beside)} ranks share the {len(own)} usable cores of its node {node}"
        elif len(cores) < num_threads:
            cores = own
        shown = f"GPU {gpu.index} ({address or 'PCI address unknown'})"
        chosen = () if why else tuple(sorted(cores))
        bindings.append(Binding(gpu=shown, node=node, cores=chosen, why_not=why))
    return Bindings(ranks=tuple(bindings))


def nodes_in(sys: Path) -> dict[int, set[int]]:
    """Return the cores of each NUMA node that has any."""
    cores_by_node = {}
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            cores = parse_cores((folder / "cpulist").read_text(encoding="ascii"))
            if cores:
                cores_by_node[int(folder.name.removeprefix("node"))] = cores
    return cores_by_node


def node_of(address: str, sys: Path) -> int:
    """Return the NUMA node of a PCI device; -1 if it is unknown, as the kernel writes it."""
    try:
        return int((sys / f"bus/pci/devices/{address}/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _physical(cores: set[int], sys: Path) -> list[set[int]]:
    """Group logical cores by the physical core that they are threads of, in order."""
    groups: dict[int, set[int]] = {}
    for core in cores:
        try:
            listed = sys / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"
            first = min(parse_cores(listed.read_text(encoding="ascii")))
        except (OSError, ValueError):
            first = core
        groups.setdefault(first, set()).add(core)
    return [groups[first] for first in sorted(groups)]


def _share(physical: list[set[int]], index: int, number: int) -> set[int]:
    """Return part `index` of `number` even parts; empty if there are fewer cores than parts."""
    if len(physical) < number:
        return set()
    begin, end = (len(physical) * edge // number for edge in (index, index + 1))
    return set[int]().union(*physical[begin:end])


def pci_addresses(gpus: Sequence[Gpu]) -> list[str]:
    """Return each GPU's PCI address as in sysfs (0000:3b:00.0), "" where NVML does not say."""
    addresses = []
    for gpu in gpus:
        address = ""
        with contextlib.suppress(nv.NVMLError, ValueError):
            handle = nv.nvmlDeviceGetHandleByIndex(gpu.index)
            domain, _, rest = nv.nvmlDeviceGetPciInfo(handle).busId.partition(":")
            address = f"{int(domain, 16):04x}:{rest.lower()}"  # NVML's domain has eight digits
        addresses.append(address)
    return addresses
