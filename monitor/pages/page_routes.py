"""The routes of the pages and of their files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from monitor.pages.page_files import TYPES, chart_file, modules_of, page, static

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
        html = page(name, page=name, modules=modules_of(name))
        return HTMLResponse(html, headers={"Cache-Control": "no-cache"})

    return show


async def _static(request: Request) -> Response:
    return _file(request, static(request.path_params["name"]))


async def _chart_file(request: Request) -> Response:
    return _file(request, chart_file(request.path_params["name"]))


async def _icon(request: Request) -> Response:
    return _file(request, static("icon.svg"))


def _file(request: Request, path: Path) -> Response:
    """Return a file, or 304 to who has it: asked for anew, so that a newer one is shown at once.

    A page takes some twenty, each of which FileResponse would open and read in threads.
    """
    stat = path.stat()
    tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = _content(path, tag)
    return Response(content, media_type=TYPES[path.suffix], headers=headers)


@lru_cache(maxsize=64)
def _content(path: Path, _tag: str) -> bytes:
    return path.read_bytes()
