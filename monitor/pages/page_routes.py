"""The routes of the pages and of their files."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

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

router = APIRouter(include_in_schema=False)


def _shows(name: str) -> Callable[[], Response]:
    def show() -> Response:
        html = page(name, page=name, modules=modules_of(name))
        return HTMLResponse(html, headers={"Cache-Control": "no-cache"})

    return show


for _path, _name in PAGES.items():
    router.add_api_route(_path, _shows(_name), response_model=None)


@router.get("/static/uplot/{name}")
async def chart(request: Request, name: str) -> Response:
    """Return a file of uPlot."""
    return _file(request, chart_file(name))


@router.get("/static/{name}")
async def own_file(request: Request, name: str) -> Response:
    """Return a file of ours."""
    return _file(request, static(name))


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """Return the icon, which browsers ask for by this name."""
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
