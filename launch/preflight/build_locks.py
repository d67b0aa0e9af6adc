"""Locks of builds of torch extensions that nobody holds: a rank that loads one waits for ever.

torch's lock is a mere file (torch/utils/file_baton.py): a build that is killed leaves it, and all
later loads wait for it to go (pytorch#189245). The caches of inductor and triton have no such lock.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from launch.console import clock
from launch.preflight.ground import Ground, fine, warning
from rundir.finding import Finding

NAME = "build locks"
_OLD_S = 600.0  # on a shared home the builder may be on another machine; few builds take so long


def check(ground: Ground) -> list[Finding]:
    """A warning for each lock that is old, and that no process has open."""
    now, locks = time.time(), find_locks(ground.environ)
    held = _open_here() if locks else set()
    found = []
    for lock in locks:
        age_s = now - _changed_at(lock, now)
        if age_s >= _OLD_S and lock.resolve() not in held:
            found.append(
                warning(
                    NAME,
                    f"{lock} is {clock(age_s)} old and nobody holds it: whoever loads the "
                    f"extension {lock.parent.name} waits for it without end",
                    f"rm {shlex.quote(str(lock))}",
                    age_s=age_s,
                )
            )
    return found or [fine(NAME, f"none of {len(locks)} is left over")]


def find_locks(environ: Mapping[str, str]) -> list[Path]:
    """The locks of all builds, where torch keeps them."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache")
    own = environ.get("TORCH_EXTENSIONS_DIR")
    if own:
        return sorted(Path(own).glob("*/lock"))
    return sorted((cache / "torch_extensions").glob("*/*/lock"))


def _changed_at(lock: Path, now: float) -> float:
    try:
        return lock.stat().st_mtime
    except OSError:  # it is gone: somebody held it
        return now


def _open_here() -> set[Path]:
    """All files called `lock` that a process has open; of others' processes nothing is seen."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    target = Path(os.readlink(link))  # noqa: PTH115 - not every one is a path
                    if target.name == "lock":
                        found.add(target)
    return found
