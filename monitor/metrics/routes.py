"""The routes about metrics: their curves, and the streams of changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from monitor.http.endpoint import Json, Param, Schema, endpoint
from monitor.metrics.event_stream import open_stream
from monitor.metrics.follower import RunFollower, RunsFollower
from monitor.metrics.hub import Hub
from monitor.metrics.index import Index
from monitor.metrics.metrics_query import MetricsQuestion
from monitor.runs.folder import Runs

_DEFAULT = "train.loss,eval.loss"
_LARGE = 2**53
_FEW_POINTS = 2000
_LARGE_ANSWER = threading.Lock()  # one at a time: each takes tens of megabytes to make
_NUMBERS: Schema = {"type": "array", "items": {"type": ["number", "string", "null"]}}
_CURVE: Schema = {
    "type": "object",
    "description": "one value for each bucket of steps, or of seconds for what has no steps",
    "properties": dict.fromkeys(("steps", "t", "min", "max", "mean", "last", "nan"), _NUMBERS),
}
_ANSWER: Schema = {
    "type": "object",
    "required": ["series", "exact", "resumes", "names", "indexed", "reset", "cursor"],
    "properties": {
        "series": {"type": "object", "additionalProperties": _CURVE},
        "exact": {"type": "boolean", "description": "each row is there, not the range of many"},
        "resumes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "step": {"type": "integer", "description": "after which training goes on"},
                    "attempt": {"type": "integer"},
                    "t": {"type": "number"},
                    "run": {"type": ["string", "null"], "description": "whose checkpoint it was"},
                    "why": {"enum": ["restart", "resume", "rollback"]},
                },
            },
        },
        "names": {"type": "array", "items": {"type": "string"}},
        "indexed": {
            "type": "object",
            "properties": {
                "bytes": {"type": "integer"},
                "of_bytes": {"type": "integer"},
                "done": {"type": "boolean"},
                "problem": {"type": "string", "description": "why there is no index in the cache"},
            },
        },
        "reset": {"type": "boolean", "description": "what `after` stood for is void"},
        "cursor": {"type": "string"},
    },
}
_STREAM: Schema = {"type": "string", "description": "Server-Sent Events"}


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        endpoint(
            "/api/runs/{run}/metrics",
            metrics,
            "Curves of a run's metrics: the least and the greatest value of each bucket",
            [
                Param(
                    name="series",
                    default=_DEFAULT,
                    meaning="names, with commas between: train.loss, train.*, gpu.used_bytes@0, *",
                ),
                *(_bound("from_step", "the first step"), _bound("to_step", "the last step")),
                *(_bound("from_t", "Unix time of the first"), _bound("to_t", "of the last")),
                Param(
                    name="points",
                    type="integer",
                    default=1000,
                    at_least=1,
                    at_most=60_000,
                    meaning="buckets of each series, fewer if there are many; with no more rows "
                    "than that, each is told",
                ),
                Param(name="after", default="", meaning="cursor: only what has come since"),
            ],
            answer=_ANSWER,
        ),
        endpoint(
            "/api/runs/{run}/stream",
            stream_run,
            "What happens in a run: status, event, metric, log, answers, reset, gone, ping",
            [
                Param(name="cursor", default="", meaning="id of the last message that came"),
                Param(name="logs", default="run", meaning="logs to follow: run,rank0"),
            ],
            answer=_STREAM,
            media_type="text/event-stream",
        ),
        endpoint(
            "/api/stream",
            stream_runs,
            "Rows of the newest runs, as they change: runs, ping",
            answer=_STREAM,
            media_type="text/event-stream",
        ),
    ]


def _bound(name: str, meaning: str) -> Param:
    return Param(name=name, type="number", at_least=-_LARGE, at_most=_LARGE, meaning=meaning)


def metrics(request: Request, *, run: str, series: str, **rest: Any) -> Response:
    """Return the curves of some series; as bytes, since a large answer takes a while to write."""
    runs: Runs = request.app.state.runs
    names = tuple(word.strip() for word in series.split(",") if word.strip())
    index: Index = request.app.state.index
    found_run = runs.find(run)
    question = MetricsQuestion(series=names, **rest)
    with _LARGE_ANSWER if question.points > _FEW_POINTS else contextlib.nullcontext():
        return Json(index.metrics(found_run, question))


async def stream_run(request: Request, *, run: str, cursor: str, logs: str) -> Response:
    """Open the stream of a run."""
    runs: Runs = request.app.state.runs
    found_run = await asyncio.to_thread(runs.find, run)
    last = request.headers.get("last-event-id", "")[:16384] or cursor
    key = str(found_run.path)
    hub: Hub = request.app.state.hub
    return await open_stream(hub, key, lambda: RunFollower(runs, found_run), cursor=last, logs=logs)


async def stream_runs(request: Request) -> Response:
    """Open the stream of all runs."""
    runs: Runs = request.app.state.runs
    hub: Hub = request.app.state.hub
    return await open_stream(hub, "", lambda: RunsFollower(runs))
