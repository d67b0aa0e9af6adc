"""What the gate cannot see from within a container: runs in other containers of the machine.

Containers without a memory limit of their own share the host's, but each has its own /tmp.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from machine.memory.host_memory import HostMemory
from machine.processes.runs import all_runs
from rundir.paths import cache_folder
from rundir.process_id import boot_id
from rundir.units import size_text

_SHORT = 0.25  # of the memory: with less of it available, runs can get in each other's way


def blind_spot() -> str | None:
    """Return a warning about what this gate cannot see, or None.

    It comes where it matters, when memory is short or another run is seen, and once per machine.
    """
    if not _is_blind() or (why := _why_it_matters()) is None or _is_told():
        return None
    return (
        f"{why}; runs in other containers of this machine, if there are any, take from the same "
        "memory, but are waited for only if all containers have one folder mounted and named in "
        "AIRLOCK_GATE_DIR"
    )


def _is_blind() -> bool:
    in_container = any(Path(file).exists() for file in ("/.dockerenv", "/run/.containerenv"))
    in_container = in_container or "KUBERNETES_SERVICE_HOST" in os.environ
    return in_container and not os.environ.get("AIRLOCK_GATE_DIR") and not HostMemory().is_limited


def _why_it_matters() -> str | None:
    memory = HostMemory().now()
    if memory.available_bytes < _SHORT * memory.total_bytes:
        there = f"{size_text(memory.available_bytes)} of {size_text(memory.total_bytes)}"
        return f"memory is short ({there} available)"
    others = [run.run.run_id for run in all_runs() if not run.is_dead]
    return f"another run is going on ({', '.join(others)})" if others else None


def _is_told() -> bool:
    """Return whether a run on this machine has said it before; note that it now has."""
    note = cache_folder() / "told" / f"blind-spot-{boot_id()}"
    if note.exists():
        return True
    with contextlib.suppress(OSError):  # a cache that cannot be written: it is said again
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    return False
