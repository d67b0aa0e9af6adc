"""What requests name: a run, in the path or the query, and how much of what there is."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from pydantic import BaseModel
from starlette.requests import Request

from monitor.runs.run_list import Runs
from rundir.paths import RunDir

Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="so many are left out")]


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


class Onward(BaseModel):
    """Where to go on in what grows."""

    after: Annotated[str, Query(description="the cursor of the answer before")] = ""
    limit: Limit = 1000
    last: Annotated[
        int,
        Query(
            ge=0,
            le=1000,
            description="the last so many instead of the first; the cursor goes on from there",
        ),
    ] = 0
