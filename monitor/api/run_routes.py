"""The routes about runs, the machine and the inbox, each with its parameters and its work."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from monitor.api import control_requests as controls
from monitor.api.inbox_files import inbox_files
from monitor.api.prometheus import MEDIA_TYPE, text_of
from monitor.api.run_status import status_of
from monitor.http.endpoint import OFFSET, Param, endpoint, limited
from monitor.runs.event_pages import events_page
from monitor.runs.incidents import incidents_of
from monitor.runs.logs import logs_page
from monitor.runs.machine_samples import gpu_stats, memory_stats
from monitor.runs.masks import mask_for
from monitor.runs.run_config import config_of
from monitor.runs.run_list import Runs
from monitor.runs.run_rows import STATES

_RUN = Param(name="run", default="latest", meaning="the run's id, or latest")
_AFTER = Param(name="after", default="", meaning="the cursor of the answer before", at_most=16384)
_LAST = Param(
    name="last",
    type="integer",
    default=0,
    at_least=0,
    at_most=1000,
    meaning="the last so many instead of the first; the cursor goes on from there",
)


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [*_of_runs(), *_of_one_run(), *_of_machine(), *_controls()]


def _of_runs() -> list[BaseRoute]:
    return [
        endpoint(
            "/api/runs",
            list_runs,
            "Runs, newest first",
            [
                limited(50),
                OFFSET,
                Param(name="search", default="", meaning="part of the id, in any case"),
                Param(name="state", default="", choices=("", *STATES), meaning="only such runs"),
            ],
        ),
        endpoint("/api/health", health, "Whether the server answers; needs no token"),
        endpoint("/api/openapi.json", openapi, "This document, OpenAPI 3.1; needs no token"),
        endpoint(
            "/metrics",
            prometheus,
            "Live runs, and those that ended last, for Prometheus",
            media_type=MEDIA_TYPE,
        ),
    ]


def _of_one_run() -> list[BaseRoute]:
    here = "/api/runs/{run}"
    return [
        endpoint(
            f"{here}/status", status, "One run: its row, ranks, how each came up, plan, alarms"
        ),
        endpoint(
            f"{here}/events",
            events,
            "Its events, of all writers, in order of time",
            [
                _AFTER,
                limited(1000),
                _LAST,
                Param(name="kind", default="", meaning="only such: start, end, mark, metric, …"),
                Param(name="name", default="", meaning="only of this name: train, eval, hang, …"),
            ],
        ),
        endpoint(
            f"{here}/logs",
            logs,
            "Lines of one of its logs, secrets masked",
            [
                Param(name="file", default="", meaning="run, agent, zygote, rank0, …"),
                Param(
                    name="attempt",
                    type="integer",
                    at_least=0,
                    at_most=10**9,
                    meaning="of a rank's log; by default the last",
                ),
                _AFTER,
                OFFSET,
                limited(1000),
                _LAST,
                Param(name="search", default="", meaning="only lines with this, in any case"),
            ],
        ),
        endpoint(f"{here}/config", config, "Its settings, command and versions, secrets masked"),
        endpoint(f"{here}/incidents", incidents, "What its failed attempts have left"),
    ]


def _of_machine() -> list[BaseRoute]:
    return [
        endpoint("/api/config", config, "The settings of a run, the latest by default", [_RUN]),
        endpoint("/api/gpu_stats", gpus, "The last sample of each GPU of a run", [_RUN]),
        endpoint("/api/memory_stats", memory, "The last memory of a run's host and ranks", [_RUN]),
        endpoint(
            "/api/inbox_files",
            inbox,
            "What an inbox does, and what was dropped into it",
            [limited(200), OFFSET],
        ),
    ]


def _controls() -> list[BaseRoute]:
    return [
        endpoint(
            "/api/runs/{run}/control",
            control_run,
            "Ask a live run for something; with the token only",
            method="POST",
            body=controls.body_schema(controls.OF_RUN),
        ),
        endpoint(
            "/api/inbox/control",
            control_inbox,
            "Ask the inbox for something; with the token only",
            method="POST",
            body=controls.body_schema(controls.OF_INBOX),
        ),
    ]


async def health(_request: Request) -> dict[str, Any]:
    """Return that the server lives."""
    return {"ok": True}


async def openapi(request: Request) -> Any:
    """Return the document, made from the routes."""
    from monitor.api.openapi import document

    return document(request.app.routes)


def list_runs(request: Request, *, limit: int, offset: int, search: str, state: str) -> Any:
    """Return a page of rows."""
    rows, total = _runs(request).page(limit=limit, offset=offset, search=search, state=state)
    return {"runs": [asdict(row) for row in rows], "total": total}


def status(request: Request, *, run: str) -> Any:
    """Return the state of one run."""
    return status_of(_runs(request).find(run))


def events(request: Request, *, run: str, **asked: Any) -> Any:
    """Return a page of events."""
    found_run = _runs(request).find(run)
    return events_page(found_run, mask_for(found_run), **asked)


def logs(request: Request, *, run: str, **asked: Any) -> Any:
    """Return lines of a log."""
    found_run = _runs(request).find(run)
    return logs_page(found_run, mask_for(found_run), **asked)


def config(request: Request, *, run: str) -> Any:
    """Return how a run was started."""
    found_run = _runs(request).find(run)
    return config_of(found_run, mask_for(found_run))


def incidents(request: Request, *, run: str) -> Any:
    """Return what failed attempts have left."""
    found_run = _runs(request).find(run)
    return {"incidents": incidents_of(found_run, mask_for(found_run))}


def gpus(request: Request, *, run: str) -> Any:
    """Return the last samples of the GPUs."""
    return gpu_stats(_runs(request).find(run))


def memory(request: Request, *, run: str) -> Any:
    """Return the last samples of memory."""
    return memory_stats(_runs(request).find(run))


def inbox(request: Request, *, limit: int, offset: int) -> Any:
    """Return the files of the inbox."""
    return inbox_files(request.app.state.settings.inbox, limit=limit, offset=offset)


def prometheus(request: Request) -> Response:
    """Return the figures of runs as Prometheus reads them."""
    return PlainTextResponse(text_of(_runs(request)), media_type=MEDIA_TYPE)


async def control_run(request: Request, *, run: str) -> Any:
    """Leave a request in a run's control folder."""
    wanted = await controls.asked_of(request, controls.OF_RUN)
    return await asyncio.to_thread(controls.control_run, _runs(request), run, wanted)


async def control_inbox(request: Request) -> Any:
    """Leave a request in the inbox's control folder."""
    wanted = await controls.asked_of(request, controls.OF_INBOX)
    folder = request.app.state.settings.inbox
    return await asyncio.to_thread(controls.control_inbox, folder, wanted)


def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs
