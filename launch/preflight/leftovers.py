"""Processes of earlier runs whose launcher is dead: they hold memory and GPUs, and nobody waits."""

from __future__ import annotations

from launch.preflight.ground import Ground, fine, warning
from launch.run_processes import RunProcesses, all_runs
from launch.stop import describe
from rundir.finding import Finding

NAME = "leftovers"
_MOST = 4  # processes named in one line


def dead_runs() -> list[RunProcesses]:
    """Runs of this user that have lost their launcher, and have processes here."""
    return [one for one in all_runs() if one.is_dead]


def check(_ground: Ground) -> list[Finding]:
    """A warning for each dead run with what is left of it; live runs are nobody's concern."""
    found = all_runs()
    dead = [one for one in found if one.is_dead]
    if not dead:
        return [fine(NAME, f"none; runs of yours that are going on: {len(found)}")]
    return [_left_over(one) for one in dead]


def _left_over(one: RunProcesses) -> Finding:
    pids = [process.pid for process in one.processes]
    named = "; ".join(describe(process) for process in one.processes[:_MOST])
    more = f"; and {len(pids) - _MOST} more" if len(pids) > _MOST else ""
    return warning(
        NAME,
        f"run {one.run.run_id} is dead and has left {one.how_many}: {named}{more}",
        f"./airlock stop {one.run.run_id}   # ends exactly these",
        run=one.run.run_id,
        pids=[str(pid) for pid in pids],
    )
