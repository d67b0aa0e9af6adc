"""How many CPU cores this process may use: those it may run on, or fewer by its cgroup's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Whole cores, at least one, and how they were counted."""

    number: int
    counted: str


def usable_cores() -> Cores:
    """The cores of this process. A container is often given CPU time rather than cores."""
    by_affinity, quota = len(os.sched_getaffinity(0)), cpu_quota()
    if quota is None or quota >= by_affinity:
        return Cores(by_affinity, f"{by_affinity} cores")
    number = max(1, int(quota))
    return Cores(number, f"{number} of {by_affinity} cores (the cgroup's CPU quota is {quota:g})")


def cpu_quota(proc: Path = Path("/proc/self")) -> float | None:
    """Seconds of CPU time a second that a process's cgroups allow it; None when they do not say.

    The least of its own cgroup and of those above it, of version 1 or 2, counts.
    """
    quotas = (read(folder) for folder in _cgroups(proc) for read in (_quota_v2, _quota_v1))
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroups(proc: Path) -> Iterator[Path]:
    """The folders of the cgroups that may limit the CPU, as far as they are mounted here."""
    try:
        groups, mounts = (proc / "cgroup").read_text(), (proc / "mountinfo").read_text()
    except OSError:
        return
    paths = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        root, mount = fields.split()[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind in paths and (kind == "cgroup2" or "cpu" in options.split(",")):
            yield from _with_parents(Path(mount), Path(root), Path(paths[kind]))


def _with_parents(mount: Path, root: Path, path: Path) -> Iterator[Path]:
    """Where `path` lies below `mount`, which shows the hierarchy from `root` on, and all above it.

    Inside a container the path may be one of the host, of which only the mount itself is seen.
    """
    inner = path.relative_to(root) if path.is_relative_to(root) else Path()
    folder = mount if ".." in inner.parts else mount / inner
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


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
