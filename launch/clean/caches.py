"""Entries of the cache that no run has used for long: prepared data, and models made for a run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launch.clean.item import Item, Kept, Retention, freed_bytes
from launch.clean.runs_in_use import LiveRuns
from rundir.seal import is_sealed

# Folder of the cache: what its entries are called, and what they are.
_ENTRIES = {
    "data": (r"[0-9a-f]{24}", "prepared data"),
    "models": (r".+-[0-9a-f]{12}", "a model made for a run"),
}

# Commands without a run use the cache as well, and runs of other machines.
_LEAST_AGE_S = 600.0


def old_entries(cache: Path, retention: Retention, live: LiveRuns) -> Iterator[Item | Kept]:
    """Yield the entries not used since, by the time of their folders (rundir/seal.py)."""
    for name, (pattern, what) in _ENTRIES.items():
        folder = cache / name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not re.fullmatch(pattern, path.name) or path.is_symlink() or not path.is_dir():
                continue
            stat = path.lstat()
            age_s = time.time() - stat.st_mtime
            if age_s < max(retention.older_than_s, _LEAST_AGE_S):
                continue
            if stat.st_uid != os.getuid() or not is_sealed(path):
                yield Kept(kind="cache", path=path, why="it has no seal of Airlock's: not ours")
            elif why := live.user_of_cached(path.name):
                yield Kept(kind="cache", path=path, why=why)
            else:
                yield Item(
                    kind="cache",
                    path=path,
                    size_bytes=freed_bytes(path),
                    age_s=age_s,
                    what=f"{what}, made again when a run needs it",
                    used=_used_since(stat.st_mtime_ns, path.name, live),
                )


def _used_since(seen_ns: int, name: str, live: LiveRuns) -> Callable[[Path], str]:
    """Return what tells whether a run has begun to use the entry meanwhile."""

    def used(at: Path) -> str:
        if at.lstat().st_mtime_ns != seen_ns:
            return "a run has begun to use it"
        return live.again().user_of_cached(name) if at.name == name else ""

    return used
