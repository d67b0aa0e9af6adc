"""All checks of the machine, run at once and within a timeout, and what a run does with them.

`airlock preflight [PROFILE]` shows them alone, including the findings that are fine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click
from rich.console import Console

from launch.checks import earlier_runs, gpus, packages, storage, system
from launch.checks.context import Context, error, warning
from launch.config.job import Job, place_job, resolve_job
from launch.config.request import Request
from launch.live.stop import end_leftovers
from machine.gpus import nvml
from machine.gpus.devices import Placement
from machine.timeouts import TimedCall
from rundir.errors import ExitCode, UserError
from rundir.finding import Finding

TIMEOUT_S = 2.0
Check = Callable[[Context], list[Finding]]
CHECKS: Mapping[str, Check] = {
    gpus.GPU: gpus.check_gpus,
    gpus.DRIVER: gpus.check_driver,
    packages.PACKAGES: packages.check_packages,
    earlier_runs.LEFTOVERS: earlier_runs.check_leftovers,
    storage.SHARED_MEMORY: storage.check_shared_memory,
    storage.DISK: storage.check_disk,
    system.LIMITS: system.check_limits,
    earlier_runs.BUILD_LOCKS: earlier_runs.check_build_locks,
    system.CLOCK: system.check_clock,
    system.LOCALHOST: system.check_localhost,
    packages.TRACKING: packages.check_tracking,
}


def show_preflight(
    request: Request, console: Console, environ: Mapping[str, str], *, as_json: bool
) -> ExitCode:
    """Print every finding, or one JSON object; return PREFLIGHT if there is an error.

    Raises UserError when the request itself is wrong.
    """
    findings = findings_of(request, environ)
    is_ready = all(finding.ok for finding in findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"diagnostic": "preflight", "ok": is_ready, "findings": rows}))  # noqa: T201
    else:
        console.out("\n".join(map(line_of, findings)))
    return ExitCode.DONE if is_ready else ExitCode.PREFLIGHT


def findings_of(request: Request, environ: Mapping[str, str]) -> list[Finding]:
    """Return all findings; if the run lacks the GPUs it needs, everything else is checked as well.

    Raises UserError when the request itself is wrong.
    """
    config, sources = resolve_job(request, environ)
    without_gpus: list[Finding] = []
    try:
        placement = place_job(request, config, sources, environ)
    except UserError as seen:
        if seen.code != ExitCode.PREFLIGHT:
            raise
        without_gpus = [error("gpu", str(seen.args[0]), seen.do)]
        placement = Placement("cpu", max(1, config.launch.num_ranks), "", ())
    job = Job(config=config, sources=sources, placement=placement, resume_from=None)
    return without_gpus + find(job, environ)


def find(
    job: Job, environ: Mapping[str, str], checks: Mapping[str, Check] = CHECKS
) -> list[Finding]:
    """Return the findings of the checks, in order; one that hangs or breaks is only a warning.

    Of a run that lacks its GPUs here, all that does not need them is checked.
    """
    if not job.placement.is_here:
        on_cpu = dataclasses.replace(job.placement, device="cpu")
        job = dataclasses.replace(job, placement=on_cpu)
    deadline = time.monotonic() + TIMEOUT_S
    state = TimedCall(nvml.driver_state) if job.placement.device == "cuda" else None
    context = Context(
        config=job.config,
        sources=job.sources,
        placement=job.placement,
        environ=environ,
        driver=lambda: state.answer(deadline) if state else None,
    )
    calls = [(name, TimedCall(partial(check, context))) for name, check in checks.items()]
    return [finding for name, answer in calls for finding in _findings_of(name, answer, deadline)]


def _findings_of(name: str, call: TimedCall[list[Finding]], deadline: float) -> list[Finding]:
    try:
        return call.answer(deadline)
    except TimeoutError:
        what = f"has not answered within {TIMEOUT_S:g} s"
        do = "`sudo dmesg | tail` and `mount` may tell: a stuck driver, a file server that is gone"
    except Exception as error:  # noqa: BLE001 - a check that breaks must not end the run
        what, do = f"could not be checked: {error!r}", "the run goes on without this check"
    return [warning(name, what, do)]


def make_sure(job: Job, environ: Mapping[str, str], console: Console, *, force: bool) -> None:
    """Print warnings, and raise UserError with all errors at once unless they are `force`d.

    On a terminal, first offer to end what a dead run has left behind.
    """
    _offer_to_end_leftovers(console)
    findings = find(job, environ)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors and not force:
        _print([finding for finding in findings if finding.level == "warning"], console)
        lines = "\n".join(f"  {error.check}: {error.text}\n    → {error.do}" for error in errors)
        raise UserError(
            f"this machine is not ready for the run\n{lines}",
            do="--force continues all the same",
            code=ExitCode.PREFLIGHT,
        )
    _print([finding for finding in findings if finding.level != "ok"], console)


def _print(findings: Sequence[Finding], console: Console) -> None:
    for finding in findings:
        console.out(f"airlock: {finding.level}: {_said(finding)}")


def line_of(finding: Finding) -> str:
    """Return a finding as a line of a list."""
    return f"{finding.level:<7}  {_said(finding)}"


def _said(finding: Finding) -> str:
    what = f"{finding.check}: {finding.warning or finding.text}"
    return what if finding.level == "ok" else f"{what}  → {finding.do}"


def _offer_to_end_leftovers(console: Console) -> None:
    """Offer on a terminal to end leftovers, which may hold the memory that the run needs."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return
    for dead in earlier_runs.dead_runs():
        asks = f"run {dead.run.run_id} is dead and has left {dead.how_many} here. End them?"
        with contextlib.suppress(click.Abort):  # Ctrl-D: no
            if click.confirm(asks, default=False):
                end_leftovers(dead, console)
