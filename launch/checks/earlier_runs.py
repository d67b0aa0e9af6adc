"""Leftovers of earlier runs: processes whose launcher is dead, and locks of killed builds.

torch's lock for building an extension is a plain file (torch/utils/file_baton.py): a build that is
killed leaves it behind, and all later loads wait for it to disappear (pytorch#189245). The caches
of inductor and triton have no such lock.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from launch.checks.context import Context, fine, warning
from launch.live.roles import roles_of
from launch.live.stop import describe
from machine.processes.runs import RunProcesses, all_runs, open_files, pids
from machine.typed import console_program
from rundir.finding import Finding
from rundir.units import clock_text

BUILD_LOCKS = "build locks"
_OLD_S = 600.0  # on a shared home the builder may be on another machine; few builds take this long

LEFTOVERS = "leftovers"
_MOST = 4  # processes named in one line


def dead_runs() -> list[RunProcesses]:
    """Return the runs of this user that have lost their launcher, and have processes here."""
    return [run for run in all_runs() if run.is_dead]


def check_leftovers(_context: Context) -> list[Finding]:
    """Return a warning for each dead run, with what is left of it; live runs are left alone."""
    runs = all_runs()
    dead = [run for run in runs if run.is_dead]
    if not dead:
        return [fine(LEFTOVERS, f"none; runs of yours that are going on: {len(runs)}")]
    return [_left_over(run) for run in dead]


def _left_over(run: RunProcesses) -> Finding:
    pids = [process.pid for process in run.processes]
    roles = roles_of(run)
    some = run.processes[:_MOST]
    named = "; ".join(describe(process, roles.get(process.pid, "")) for process in some)
    more = f"; and {len(pids) - _MOST} more" if len(pids) > _MOST else ""
    return warning(
        LEFTOVERS,
        f"run {run.run.run_id} is dead and has left {run.how_many}: {named}{more}",
        f"{console_program()} stop {run.run.run_id}   # ends exactly these",
        run=run.run.run_id,
        pids=[str(pid) for pid in pids],
    )


def check_build_locks(context: Context) -> list[Finding]:
    """Return a warning for each old lock that no process has open."""
    now, locks = time.time(), find_locks(context.environ)
    held = _open_here() if locks else set()
    findings = []
    for lock in locks:
        age_s = now - _changed_at(lock, now)
        if age_s >= _OLD_S and lock.resolve() not in held:
            findings.append(
                warning(
                    BUILD_LOCKS,
                    f"{lock} is {clock_text(age_s)} old and nobody holds it: whoever loads the "
                    f"extension {lock.parent.name} waits for it without end",
                    f"rm {shlex.quote(str(lock))}",
                    age_s=age_s,
                )
            )
    return findings or [fine(BUILD_LOCKS, f"none of {len(locks)} is left over")]


def find_locks(environ: Mapping[str, str]) -> list[Path]:
    """Return the locks of all builds, from where torch keeps them."""
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
    """Return all open files named `lock`; other users' processes are not seen."""
    return {Path(file) for pid in pids() for file in open_files(pid) if Path(file).name == "lock"}
