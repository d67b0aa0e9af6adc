"""The endpoints about runs, the machine and the inbox; each docstring stands in docs/serve.md.

A plain function runs in a thread of the pool and may read files. All of them make their JSON
themselves: pydantic checks what is asked, and would take longer over an answer than the work does.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from monitor.api.control_requests import InboxRequest, RunRequest, leave_for_inbox, leave_for_run
from monitor.api.inbox_files import inbox_files
from monitor.api.prometheus import MEDIA_TYPE, text_of
from monitor.api.run_status import status_of
from monitor.http.json_api import Json
from monitor.runs.event_pages import events_page
from monitor.runs.incidents import incidents_of
from monitor.runs.logs import logs_page
from monitor.runs.machine_samples import gpu_stats, memory_stats
from monitor.runs.requested_run import AllRuns, Limit, Offset, Onward, RunInPath, RunInQuery
from monitor.runs.run_config import config_of, mask_for
from monitor.runs.run_rows import State

router = APIRouter()
# The guard checks the token, before a body is read; here the document learns of it.
_WITH_TOKEN = [Security(HTTPBearer(scheme_name="token", auto_error=False))]


class RunControl(BaseModel):
    """The body of a request to a run."""

    request: RunRequest


class InboxControl(BaseModel):
    """The body of a request to an inbox."""

    request: InboxRequest


class WantedEvents(Onward):
    """Which events are asked for."""

    kind: str = Field("", description="only such: start, end, mark, metric, …")
    name: str = Field("", description="only of this name: train, eval, hang, …")


class WantedLines(Onward):
    """Which lines are asked for, of which log."""

    file: str = Field("", description="run, agent, zygote, rank0, …")
    attempt: int | None = Field(
        None, ge=0, le=10**9, description="of a rank's log; by default the last"
    )
    offset: Offset = 0
    search: str = Field("", description="only lines with this, in any case")


@router.get("/api/runs")
def list_runs(
    runs: AllRuns,
    limit: Limit = 50,
    offset: Offset = 0,
    search: Annotated[str, Query(description="part of the id, in any case")] = "",
    state: Annotated[Literal["", State], Query(description="only such runs")] = "",
) -> Json:
    """Runs, newest first."""
    rows, total = runs.page(limit=limit, offset=offset, search=search, state=state)
    return Json({"runs": [asdict(row) for row in rows], "total": total})


@router.get("/api/health")
async def health() -> Json:
    """Whether the server answers; needs no token."""
    return Json({"ok": True})


@router.get("/api/openapi.json")
def openapi(request: Request) -> Json:
    """This document, OpenAPI 3.1; needs no token."""
    return Json(request.app.openapi())


@router.get("/metrics", response_class=PlainTextResponse)
def prometheus(runs: AllRuns) -> PlainTextResponse:
    """Live runs, and those that ended last, for Prometheus."""
    return PlainTextResponse(text_of(runs), media_type=MEDIA_TYPE)


@router.get("/api/runs/{run}/status")
def status(run: RunInPath) -> Json:
    """One run: its row, ranks, how each came up, plan, alarms."""
    return Json(status_of(run))


@router.get("/api/runs/{run}/events")
def events(run: RunInPath, wanted: Annotated[WantedEvents, Query()]) -> Json:
    """Its events, of all writers, in order of time."""
    return Json(events_page(run, mask_for(run), **dict(wanted)))


@router.get("/api/runs/{run}/logs")
def logs(run: RunInPath, wanted: Annotated[WantedLines, Query()]) -> Json:
    """Lines of one of its logs, secrets masked."""
    return Json(logs_page(run, mask_for(run), **dict(wanted)))


@router.get("/api/runs/{run}/config")
def config(run: RunInPath) -> Json:
    """Its settings, command and versions, secrets masked."""
    return Json(config_of(run, mask_for(run)))


@router.get("/api/runs/{run}/incidents")
def incidents(run: RunInPath) -> Json:
    """What its failed attempts have left."""
    return Json({"incidents": incidents_of(run, mask_for(run))})


@router.get("/api/config")
def latest_config(run: RunInQuery) -> Json:
    """The settings of a run, the latest by default."""
    return config(run)


@router.get("/api/gpu_stats")
def gpus(run: RunInQuery) -> Json:
    """The last sample of each GPU of a run."""
    return Json(gpu_stats(run))


@router.get("/api/memory_stats")
def memory(run: RunInQuery) -> Json:
    """The last memory of a run's host and ranks."""
    return Json(memory_stats(run))


@router.get("/api/inbox_files")
def inbox(request: Request, limit: Limit = 200, offset: Offset = 0) -> Json:
    """What an inbox does, and what was dropped into it."""
    return Json(inbox_files(request.app.state.settings.inbox, limit=limit, offset=offset))


@router.post("/api/runs/{run}/control", dependencies=_WITH_TOKEN)
def control_run(run: RunInPath, body: RunControl) -> Json:
    """Ask a live run for something; with the token only."""
    return Json(leave_for_run(run, body.request))


@router.post("/api/inbox/control", dependencies=_WITH_TOKEN)
def control_inbox(request: Request, body: InboxControl) -> Json:
    """Ask the inbox for something; with the token only."""
    return Json(leave_for_inbox(request.app.state.settings.inbox, body.request))
