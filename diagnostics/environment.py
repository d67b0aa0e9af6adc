"""`python -m diagnostics.environment`: what machine is this, and is it ready for the run?

Besides the checks that precede a run (launch/checks), this shows what helps to investigate odd
behaviour: versions, limits, memory, NUMA, the GPUs' health and their interconnects. torch is not
imported.
"""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import replace
from pathlib import Path

import psutil

from diagnostics.basic import check_packages
from diagnostics.probes.gpu_health import check_gpus
from diagnostics.probes.gpu_links import check_links
from diagnostics.probes.result import Findings, install_command
from diagnostics.probes.rung import rung
from launch.checks.preflight import findings_of
from launch.config.request import Request
from machine.cores.binding import parse_cores
from machine.cores.cores import usable_cores
from machine.memory.host_memory import HostMemory
from rundir.finding import Figure, Finding
from rundir.units import GIB, size_text
from rundir.versions import version_of

_PACKAGES = (
    "transformers",
    "accelerate",
    "peft",
    "tokenizers",
    "safetensors",
    "pyarrow",
    "numpy",
    "nvidia-ml-py",
    "bitsandbytes",
    "flash-attn",
)
_LIMITS = {
    "address space": (resource.RLIMIT_AS, GIB, " GiB"),
    "data": (resource.RLIMIT_DATA, GIB, " GiB"),
    "locked memory": (resource.RLIMIT_MEMLOCK, 1024, " KiB"),
    "stack": (resource.RLIMIT_STACK, 1024, " KiB"),
    "open files": (resource.RLIMIT_NOFILE, 1, ""),
    "processes": (resource.RLIMIT_NPROC, 1, ""),
    "core file": (resource.RLIMIT_CORE, 1024, " KiB"),
}
_NODES = Path("/sys/devices/system/node")


@rung("environment")
def main(findings: Findings, request: Request, _timeout_s: float) -> None:
    """Show what this machine is, and check whether it is ready; exits with 4 if it is not."""
    packages = check_packages()
    findings.add(replace(packages, check="versions", figures=packages.figures | versions()))
    findings.add(check_host())
    findings.add(check_limits())
    findings.add(check_numa())
    with findings.reported("machine", install_command()):
        for finding in (*findings_of(request, os.environ), *check_gpus(), *check_links()):
            findings.add(finding)
    findings.finish(f"{packages.text}; {usable_cores().counted}")


def versions() -> dict[str, Figure]:
    """Return the versions of kernel, libc and further packages; None if not installed."""
    system: dict[str, Figure] = {
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }
    return system | {name: version_of(name) for name in _PACKAGES}


def check_host() -> Finding:
    """Report cores and memory, as bounded by the host or a cgroup; this never fails."""
    cores, memory, swap = usable_cores(), HostMemory().now(), psutil.swap_memory()
    return Finding(
        check="host",
        ok=True,
        text=f"{platform.system()} {platform.release()}, {cores.counted}, "
        f"{size_text(memory.available_bytes)} of {size_text(memory.total_bytes)} available "
        f"({memory.where}), swap {size_text(swap.free)} of {size_text(swap.total)} free",
        figures={
            "num_cores": cores.number,
            "available_bytes": memory.available_bytes,
            "total_bytes": memory.total_bytes,
            "bound_by": memory.where,
            "swap_free_bytes": swap.free,
        },
    )


def check_limits() -> Finding:
    """Report the limits that a process here starts with (`ulimit`); this never fails."""
    texts, figures = [], dict[str, Figure]()
    for name, (which, unit, unit_text) in _LIMITS.items():
        soft, _ = resource.getrlimit(which)
        is_set = soft != resource.RLIM_INFINITY
        texts.append(f"{name} {f'{soft / unit:,.6g}{unit_text}' if is_set else 'unlimited'}")
        figures[name.replace(" ", "_")] = soft if is_set else None
    return Finding(check="ulimit", ok=True, text=", ".join(texts), figures=figures)


def check_numa(folder: Path = _NODES) -> Finding:
    """Report the NUMA nodes with their cores and memory; warn if this process may use only some."""
    own, nodes, unused = os.sched_getaffinity(0), [], []
    for node in sorted(
        folder.glob("node[0-9]*"), key=lambda folder_of_node: int(folder_of_node.name[4:])
    ):
        listed = (node / "cpulist").read_text(encoding="ascii").strip()
        nodes.append(f"{node.name[4:]}: cores {listed or 'none'}, {_memory_of(node)}")
        if listed and not own & parse_cores(listed):
            unused.append(node.name[4:])
    text = f"{len(nodes)} node{'s' * (len(nodes) != 1)}" + (f" ({'; '.join(nodes)})" * bool(nodes))
    warning = ""
    if unused:
        warning = f"this process may not run on the cores of node {', '.join(unused)}"
    return Finding(
        check="numa",
        ok=True,
        text=text,
        warning=warning,
        do="taskset -pc $$   # who has set that: a container's cpuset, numactl, a job's queue?",
        figures={"num_nodes": len(nodes), "unused_nodes": unused},
    )


def _memory_of(node: Path) -> str:
    lines = (node / "meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split()[2]: int(line.split()[3]) for line in lines}
    return f"{size_text(kib['MemFree:'] * 1024)} of {size_text(kib['MemTotal:'] * 1024)} free"


if __name__ == "__main__":
    main(prog_name="diagnostics.environment")
