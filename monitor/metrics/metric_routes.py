"""The endpoints about metrics: their curves, and the streams of changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from monitor.http.json_api import Json
from monitor.metrics.follower import RunFollower, RunsFollower
from monitor.metrics.hub import Following, Hub, Listener
from monitor.metrics.metrics_query import MetricsQuestion
from monitor.metrics.stream_messages import message
from monitor.runs.requested_run import AllRuns, RunInPath

router = APIRouter()
_FEW_POINTS = 2000
_LARGE_ANSWER = threading.Lock()  # one at a time: each takes tens of megabytes to make
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
_PING_S = 15.0
_SLOW_S = 60.0  # a reader that takes nothing for so long is not there
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser comes again
_END = {"type": "http.response.body", "body": b"", "more_body": False}
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # a proxy is to pass on each message at once
}


def _bound(meaning: str) -> Any:
    return Field(None, ge=-(2**53), le=2**53, allow_inf_nan=False, description=meaning)


class WantedCurves(BaseModel):
    """Which curves are asked for, and how finely."""

    series: str = Field(
        "train.loss,eval.loss",
        description="names, with commas between: train.loss, train.*, gpu.used_bytes@0, *",
    )
    from_step: float | None = _bound("the first step")
    to_step: float | None = _bound("the last step")
    from_t: float | None = _bound("Unix time of the first")
    to_t: float | None = _bound("of the last")
    points: int = Field(
        1000,
        ge=1,
        le=60_000,
        description="buckets of each series, fewer if there are many; with no more rows than "
        "that, each is told",
    )
    after: str = Field("", description="cursor: only what has come since")


@router.get("/api/runs/{run}/metrics")
def metrics(request: Request, run: RunInPath, wanted: Annotated[WantedCurves, Query()]) -> Json:
    """Curves of a run's metrics: the least and the greatest value of each bucket."""
    names = tuple(word.strip() for word in wanted.series.split(",") if word.strip())
    question = MetricsQuestion(**dict(wanted) | {"series": names})
    with _LARGE_ANSWER if wanted.points > _FEW_POINTS else contextlib.nullcontext():
        return Json(request.app.state.index.metrics(run, question))


@router.get("/api/runs/{run}/stream", responses=_STREAM, response_class=Response)
async def stream_run(
    request: Request,
    runs: AllRuns,
    run: RunInPath,
    cursor: Annotated[str, Query(description="id of the last message that came")] = "",
    logs: Annotated[str, Query(description="logs to follow: run,rank0")] = "run",
) -> Response:
    """What happens in a run: status, event, metric, log, answers, reset, gone, ping."""
    last = request.headers.get("last-event-id", "")[:16384] or cursor
    key, hub = str(run.path), request.app.state.hub
    return await open_stream(hub, key, lambda: RunFollower(runs, run), cursor=last, logs=logs)


@router.get("/api/stream", responses=_STREAM, response_class=Response)
async def stream_runs(request: Request, runs: AllRuns) -> Response:
    """Rows of the newest runs, as they change: runs, ping."""
    return await open_stream(request.app.state.hub, "", lambda: RunsFollower(runs))


async def open_stream(
    hub: Hub, key: str, make: Callable[[], Following], *, cursor: str = "", logs: str = "run"
) -> EventStream:
    """Return the response that tells of what `make()` follows. Raises TooManyError."""
    wanted = frozenset(word.strip() for word in logs.split(",") if word.strip())
    listener = Listener(wanted)
    await hub.listen(key, make, listener, cursor)
    return EventStream(listener, lambda: hub.leave(key, listener))


class EventStream(StreamingResponse):
    """A response that goes on until its reader has gone, or the run has."""

    def __init__(self, listener: Listener, leave: Callable[[], None]) -> None:
        super().__init__(_messages(listener), headers=_HEADERS, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is, and wait as long as the reader does not keep up."""

        async def send_soon(part: Message) -> None:
            await asyncio.wait_for(send(part), _SLOW_S)

        try:
            await super().__call__(scope, receive, send_soon)
        except asyncio.CancelledError:  # the server ends, and has told streams to
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(send(_END), 0.5)
        except TimeoutError:  # to a reader that takes nothing, nothing can be said
            pass
        finally:
            self._leave()


async def _messages(listener: Listener) -> AsyncIterator[bytes]:
    yield _RETRY
    while not listener.has_ended:
        yield await listener.take(_PING_S) or message("ping", {"t": time.time()}).data
