"""Mounted filesystems, as this process sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")

_ESCAPED = re.compile(r"\\([0-7]{3})")
_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "orangefs",
    "pvfs2",
    "panfs",
    "wekafs",
    "afs",
    "9p",
    "virtiofs",
}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.ntfs-3g"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of /proc/self/mountinfo. `root` is the filesystem's folder mounted at `point`."""

    root: str
    point: Path
    kind: str  # the filesystem's type: ext4, nfs4, overlay, cgroup2…
    options: str


def mounts(proc: Path = PROC) -> list[Mount]:
    """Return every mount, in order of creation. The format is that of proc_pid_mountinfo(5)."""
    mount_list = []
    for line in (proc / "mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _source, options) = before.split(" "), after.split(" ", 2)
        root, point = _unescaped(fields[3]), Path(_unescaped(fields[4]))
        mount_list.append(Mount(root=root, point=point, kind=kind, options=options))
    return mount_list


def filesystem_of(path: Path) -> str:
    """Return the filesystem type of `path`, which need not exist yet.

    Without a list of mounts (macOS) it is "unknown", which counts as local.
    """
    whole = path.resolve()
    try:
        on_the_way = [mount for mount in mounts() if whole.is_relative_to(mount.point)]
    except FileNotFoundError:
        return "unknown"
    # Of mounts on the same point the last one counts, and max() returns the first of equals.
    return max(reversed(on_the_way), key=lambda mount: len(mount.point.parts)).kind


def is_network(kind: str) -> bool:
    """Return whether files on this filesystem type come over a network or from another system."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), text)
