"""The app: the endpoints of all rooms, what guards them, and how errors are answered."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request

from monitor.answers.answer_routes import router as answer_router
from monitor.api.request_guard import HEADERS, Guard
from monitor.api.run_routes import router as run_router
from monitor.api.server_settings import ServerSettings
from monitor.http.json_api import ApiError, BadRequestError, Json, NotFoundError, error_answer
from monitor.metrics.hub import Hub
from monitor.metrics.index import Index
from monitor.metrics.metric_routes import router as metric_router
from monitor.pages.page_routes import router as page_router
from monitor.runs.run_list import Runs

_NUM_THREADS = 4  # that read files at once: each may hold some MiB
_NEAR = 0.75  # likeness of two words, 0 to 1


class ErrorBody(BaseModel):
    """The body of every answer that is no success."""

    error: str
    hint: str


_ERRORS: dict[int | str, str] = {
    400: "a parameter or the body cannot be used",
    401: "the token is missing or wrong",
    403: "another Host, or a request of another site",
    404: "no such run, file, data set or path",
    405: "another method",
    409: "it does not fit the state of the run",
    413: "the body is too large",
    414: "the URL is too long",
    429: "too many streams",
    "default": "a fault of the server",
}


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the app. Endpoints find `app.state.settings`, `.runs`, `.index` and `.hub`."""
    app = FastAPI(
        title="Airlock",
        version="1",
        description="The API of `./airlock serve`. Times are Unix seconds; numbers that JSON "
        "lacks (NaN, infinities) are their names.",
        servers=[{"url": ".."}],  # relative to where the document lies, behind any proxy
        openapi_url=None,  # an endpoint of ours has it, which the document lists as well
        responses={code: {"model": ErrorBody, "description": why} for code, why in _ERRORS.items()},
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={
            HTTPException: _answer,
            RequestValidationError: _answer_invalid,
            Exception: _answer_fault,
        },
        lifespan=_lifespan,
        redirect_slashes=False,  # it would send a browser to the Host that it has named
    )
    for router in (run_router, metric_router, answer_router):
        app.include_router(router)
    if settings.with_pages:
        app.include_router(page_router)  # last, as theirs are the widest
    app.state.settings = settings
    app.state.runs = Runs(settings.runs_folder)
    app.state.index = Index()
    app.state.hub = Hub()
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = _NUM_THREADS
    yield
    app.state.index.close()


async def _answer(request: Request, error: Exception) -> Json:
    """Answer an error of ours, or one of FastAPI: an unknown path, another method."""
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_answer(error)
    path = request.url.path
    if error.status_code == 404:  # noqa: PLR2004 - not found
        near = nearest(path, paths_of(request.app))
        hint = f"did you mean {near}?" if near else "all paths: api/openapi.json"
        return error_answer(NotFoundError(f"no {path[:200]!r} here", hint))
    return error_answer(error)


def paths_of(app: FastAPI) -> list[str]:
    """Return the paths of all endpoints that the document lists."""
    return list(app.openapi()["paths"])


async def _answer_invalid(_request: Request, error: Exception) -> Json:
    """Answer a parameter or a body that pydantic has refused."""
    assert isinstance(error, RequestValidationError)
    wrong = error.errors()[0]
    kind, *names = wrong["loc"]
    if kind == "body":
        hint = f'a body such as {{"request": "pause"}} is needed; {wrong["msg"]}'
        return error_answer(BadRequestError("the body names no request", hint))
    text = f"{names[0]} is {str(wrong['input'])[:40]!r}"
    return error_answer(BadRequestError(text, f"{names[0]}: {wrong['msg']}"))


async def _answer_fault(_request: Request, error: Exception) -> Json:
    """Answer a fault of this server, which is logged with its traceback."""
    text = f"a fault of the server: {type(error).__name__}"
    hint = "its own output has the traceback; please report it"
    return error_answer(ApiError(text, hint, headers=HEADERS))


def nearest(path: str, known: Iterable[str]) -> str:
    """Return the path meant by `path`, its own words filled in; "" if none is near.

    `known` are paths of routes: /api/evolution/{dataset}/snapshot/{step}.
    """
    words = [part for part in path.split("/") if part]
    best, best_score = "", 0.0
    for known_path in known:
        parts = [part for part in known_path.split("/") if part]
        if len(parts) == len(words) and known_path != path:
            near, score = _filled_in(words, parts)
            if score > best_score:
                best, best_score = near, score
    return best


def _filled_in(words: list[str], parts: list[str]) -> tuple[str, float]:
    """Fill in a route if each of its fixed words is there or nearly there, wherever it stands."""
    rest, total = list(words), 0.0
    for part in parts:
        if not part.startswith("{"):
            likeness, word = max((_likeness(word, part), word) for word in rest)
            if likeness < _NEAR:
                return "", 0.0
            rest.remove(word)
            total += likeness
    names = iter(rest)
    filled = [next(names) if part.startswith("{") else part for part in parts]
    in_place = sum(a == b for a, b in zip(words, filled, strict=True))
    return "/" + "/".join(filled), (total + in_place) / len(parts)


def _likeness(word: str, part: str) -> float:
    return difflib.SequenceMatcher(None, word.lower()[:80], part).ratio()
