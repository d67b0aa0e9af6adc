"""The number of CPU cores this process may use, by its affinity and its cgroup's quota.

And the number of threads that a rank computes with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from machine.cgroups import group_folders
from machine.mounts import Mount, mounts


@dataclass(frozen=True, slots=True)
class Cores:
    """A number of whole cores, at least one, and how they were counted."""

    number: int
    counted: str


_before_binding: int | None = None


def remember_affinity() -> None:
    """Keep counting the cores that this process has now, when it binds itself to a share of them.

    The gate compares them with what all ranks of the node compute.
    """
    global _before_binding  # noqa: PLW0603 - as much a state of the process as its affinity
    if _before_binding is None:
        _before_binding = len(os.sched_getaffinity(0))


def usable_cores() -> Cores:
    """Return the cores of this run. Containers often limit CPU time rather than cores."""
    by_affinity = _before_binding or _own_cores()
    quota = cpu_quota()
    if quota is None or quota >= by_affinity:
        return Cores(by_affinity, f"{by_affinity} cores")
    number = max(1, int(quota))
    return Cores(number, f"{number} of {by_affinity} cores (the cgroup's CPU quota is {quota:g})")


def _own_cores() -> int:
    is_linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1


def threads_in(omp_num_threads: str) -> int:
    """Return the threads that OMP_NUM_THREADS, a number or a list, asks for; 0 if it is neither."""
    first = omp_num_threads.partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def num_threads() -> int:
    """Return the threads that a rank computes with: as OpenMP, OMP_NUM_THREADS or all its cores."""
    return threads_in(os.environ.get("OMP_NUM_THREADS", "")) or _own_cores()


def cpu_quota() -> float | None:
    """Return the CPU seconds per second this process's cgroups allow; None if no limit is known."""
    try:
        return least_quota(Path("/proc/self/cgroup").read_text(encoding="utf-8"), mounts())
    except OSError:
        return None


def least_quota(groups: str, mounted: list[Mount]) -> float | None:
    """Return the least quota of a process's cgroups, version 1 or 2, and all their parents.

    `groups` is the text of the process's /proc/PID/cgroup.
    """
    folders = (folder for folder, _ in group_folders("cpu", groups, mounted))
    quotas = (read(folder) for folder in folders for read in (_quota_v2, _quota_v1))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu.cfs_quota_us").read_text())
        return None if quota < 0 else quota / int((cgroup / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
