"""All checks of the machine, at once and within a bound; and what a run makes of their findings."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType

import click
from rich.console import Console

from launch import nvml
from launch.job import Job
from launch.patience import Asked
from launch.preflight import (
    build_locks,
    clock,
    disk,
    driver,
    gpus,
    leftovers,
    limits,
    loopback,
    packages,
    shared_memory,
    tracking,
)
from launch.preflight.ground import Ground, warning
from launch.stop import end_leftovers
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.finding import Finding

TIMEOUT_S = 2.0
CHECKS: tuple[ModuleType, ...] = (
    gpus,
    driver,
    packages,
    leftovers,
    shared_memory,
    disk,
    limits,
    build_locks,
    clock,
    loopback,
    tracking,
)


def find(
    job: Job, environ: Mapping[str, str], checks: Sequence[ModuleType] = CHECKS
) -> list[Finding]:
    """What the checks find, in their order. One that hangs or breaks is a warning, and no more."""
    deadline = time.monotonic() + TIMEOUT_S
    state = Asked(nvml.driver_state) if job.placement.device == "cuda" else None
    ground = Ground(
        config=job.config,
        sources=job.sources,
        placement=job.placement,
        environ=environ,
        driver=lambda: state.answer(deadline) if state else None,
    )
    asked = [(check.NAME, Asked(partial(check.check, ground))) for check in checks]
    return [finding for name, one in asked for finding in _findings_of(name, one, deadline)]


def _findings_of(name: str, asked: Asked[list[Finding]], deadline: float) -> list[Finding]:
    try:
        return asked.answer(deadline)
    except TimeoutError:
        what = f"has not answered within {TIMEOUT_S:g} s"
        do = "`sudo dmesg | tail` and `mount` may tell: a stuck driver, a file server that is gone"
    except Exception as error:  # noqa: BLE001 - a check that breaks must not end what it is to protect
        what, do = f"could not be checked: {error!r}", "the run goes on without this check"
    return [warning(name, what, do)]


def make_sure(job: Job, environ: Mapping[str, str], console: Console, *, force: bool) -> None:
    """Print warnings, and raise UserError with all errors at once unless they are `force`d.

    On a terminal it offers to end what a dead run has left, before anything is judged.
    """
    _offer_to_end_leftovers(console)
    found = find(job, environ)
    errors = [finding for finding in found if finding.level == "error"]
    if errors and not force:
        _print([finding for finding in found if finding.level == "warning"], console)
        lines = "\n".join(f"  {one.check}: {one.text}\n    → {one.do}" for one in errors)
        raise UserError(
            f"this machine is not ready for the run\n{lines}",
            do="--force goes on all the same",
            code=ExitCode.PREFLIGHT,
        )
    _print([finding for finding in found if finding.level != "ok"], console)


def _print(found: Sequence[Finding], console: Console) -> None:
    for finding in found:
        console.out(f"airlock: {finding.level}: {_said(finding)}", highlight=False)


def line_of(finding: Finding) -> str:
    """A finding as a line of a list of them."""
    return f"{finding.level:<7}  {_said(finding)}"


def _said(finding: Finding) -> str:
    what = f"{finding.check}: {finding.warning or finding.text}"
    return what if finding.level == "ok" else f"{what}  → {finding.do}"


def _offer_to_end_leftovers(console: Console) -> None:
    """Where a person can answer: what is left over may hold the memory that the run needs."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return
    for dead in leftovers.dead_runs():
        asks = f"run {dead.run.run_id} is dead and has left {dead.how_many} here. End them?"
        with contextlib.suppress(click.Abort):  # Ctrl-D: no
            if click.confirm(asks, default=False):
                end_leftovers(dead, console)
