"""The run that a request names, in its path or in its query."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from starlette.requests import Request

from monitor.runs.run_list import Runs
from rundir.paths import RunDir


async def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


AllRuns = Annotated[Runs, Depends(_runs)]


def _run_of_path(runs: AllRuns, run: str) -> RunDir:
    return runs.find(run)


def _run_of_query(
    runs: AllRuns, run: Annotated[str, Query(description="the run's id, or latest")] = "latest"
) -> RunDir:
    return runs.find(run)


RunInPath = Annotated[RunDir, Depends(_run_of_path)]
RunInQuery = Annotated[RunDir, Depends(_run_of_query)]
