"""`airlock preflight [PROFILE]`: the checks alone, and also what they have found to be right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from rich.console import Console

from launch.devices import Placement
from launch.job import Job, place_job, resolve_job
from launch.preflight.checks import find, line_of
from launch.preflight.ground import error
from launch.request import Request
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.finding import Finding


def show(
    request: Request, console: Console, environ: Mapping[str, str], *, as_json: bool
) -> ExitCode:
    """Print every finding, or one JSON object; PREFLIGHT if there is an error.

    Raises UserError when the request itself is wrong.
    """
    found = findings_of(request, environ)
    is_ready = all(finding.ok for finding in found)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in found]
        print(json.dumps({"diagnostic": "preflight", "ok": is_ready, "findings": rows}))  # noqa: T201
    else:
        console.out("\n".join(map(line_of, found)), highlight=False)
    return ExitCode.DONE if is_ready else ExitCode.PREFLIGHT


def findings_of(request: Request, environ: Mapping[str, str]) -> list[Finding]:
    """All findings; of a run that has not the GPUs it needs, everything else is looked at as well.

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
