"""The control groups (cgroups), version 1 or 2, of a process, as visible from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from machine.mounts import PROC, Mount, mounts


def own_groups(controller: str, proc: Path = PROC) -> list[tuple[Path, int]]:
    """Return (folder, version) of this process's groups under `controller`, innermost first.

    Raises OSError if there are no cgroups.
    """
    groups = (proc / "cgroup").read_text(encoding="utf-8")
    return list(group_folders(controller, groups, mounts(proc)))


def group_folders(controller: str, groups: str, mounted: list[Mount]) -> Iterator[tuple[Path, int]]:
    """Yield the same for any process: `groups` is the text of its /proc/PID/cgroup."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mounted:
            is_old = mount.kind == "cgroup" and controller in mount.options.split(",")
            if is_old if controllers else mount.kind == "cgroup2":
                version = 1 if controllers else 2
                yield from ((folder, version) for folder in _with_parents(mount, Path(path)))


def _with_parents(mount: Mount, path: Path) -> Iterator[Path]:
    """Yield the folder of the cgroup `path` and of each of its visible parents.

    Inside a container the path may be the host's, and then only the mount point itself is visible.
    """
    inner = path.relative_to(mount.root) if path.is_relative_to(mount.root) else Path()
    folder = mount.point / inner
    if ".." in inner.parts or not folder.is_dir():
        folder = mount.point
    while folder != mount.point:
        yield folder
        folder = folder.parent
    yield mount.point
