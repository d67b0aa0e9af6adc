"""The Starlette app: the routes of all rooms, what guards them, and how errors are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute

from monitor.answers.answer_routes import routes as answers_routes
from monitor.api.near import nearest
from monitor.api.openapi import told_in
from monitor.api.request_guard import HEADERS, Guard
from monitor.api.run_routes import routes as own_routes
from monitor.api.server_settings import ServerSettings
from monitor.http.api_errors import ApiError, NotFoundError, WrongMethodError
from monitor.http.endpoint import Json
from monitor.metrics.hub import Hub
from monitor.metrics.index import Index
from monitor.metrics.metric_routes import routes as metrics_routes
from monitor.pages.page_routes import routes as pages_routes
from monitor.runs.run_list import Runs

_NUM_THREADS = 4  # that read files at once: each may hold some MiB


def create_app(settings: ServerSettings) -> Starlette:
    """Return the app. Handlers find `app.state.settings`, `.runs`, `.index` and `.hub`."""
    app = Starlette(
        routes=all_routes(settings),
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={
            ApiError: _answer,
            HTTPException: _answer_unknown,
            Exception: _answer_fault,
        },
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # it would send a browser to the Host that it has named
    app.state.settings = settings
    app.state.runs = Runs(settings.runs_folder)
    app.state.index = Index()
    app.state.hub = Hub()
    return app


def all_routes(settings: ServerSettings) -> list[BaseRoute]:
    """Return the routes of this room and of the others."""
    routes = [*own_routes(), *metrics_routes(), *answers_routes()]
    if settings.with_pages:
        routes += pages_routes()  # last, as theirs are the widest
    return routes


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    threads = ThreadPoolExecutor(_NUM_THREADS, "files")
    asyncio.get_running_loop().set_default_executor(threads)
    yield
    app.state.index.close()


async def _answer(_request: Request, error: Exception) -> Json:
    assert isinstance(error, ApiError)
    return Json(error.body(), status_code=error.status)


async def _answer_unknown(request: Request, error: Exception) -> Json:
    """Answer what no route takes: an unknown path, or another method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code != NotFoundError.status:
        body = WrongMethodError(f"{path[:200]} takes other methods", "see api/openapi.json").body()
        return Json(body, status_code=error.status_code, headers=error.headers)
    near = nearest(path, [endpoint.path for endpoint in told_in(request.app.routes)])
    hint = f"did you mean {near}?" if near else "all paths: api/openapi.json"
    return Json(NotFoundError(f"no {path[:200]!r} here", hint).body(), status_code=404)


async def _answer_fault(_request: Request, error: Exception) -> Json:
    """Answer a fault of this server, which is logged with its traceback."""
    text = f"a fault of the server: {type(error).__name__}"
    body = ApiError(text, "its own output has the traceback; please report it").body()
    return Json(body, status_code=500, headers=HEADERS)
