"""The routes of the pages and of their files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from monitor.pages.files import TYPES, chart_file, page, static

# URL -> template. All lie at the same depth, so that relative URLs hold below any prefix.
PAGES = {
    "/": "runs",
    "/run": "run",
    "/evolution": "evolution",
    "/config": "config",
    "/compare": "compare",
    "/inbox": "inbox",
}


def routes() -> list[BaseRoute]:
    """Return the routes of all pages, and of their CSS and modules."""
    return [
        *(Route(path, _shows(name), methods=["GET"]) for path, name in PAGES.items()),
        Route("/static/uplot/{name}", _chart_file, methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/favicon.ico", _icon, methods=["GET"]),
    ]


def _shows(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(_: Request) -> Response:
        return HTMLResponse(page(name, page=name), headers={"Cache-Control": "no-cache"})

    return show


async def _static(request: Request) -> Response:
    return _file(static(request.path_params["name"]))


async def _chart_file(request: Request) -> Response:
    return _file(chart_file(request.path_params["name"]))


async def _icon(_: Request) -> Response:
    return _file(static("icon.svg"))


def _file(path: Path) -> Response:
    # Asked for anew each time, and answered by 304: a newer Airlock shows its newer pages.
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})
