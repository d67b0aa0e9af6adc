"""The endpoints about metrics: their curves, and the streams of changes."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from monitor.http.json_answer import Json
from monitor.metrics.event_stream import open_stream
from monitor.metrics.follower import RunFollower, RunsFollower
from monitor.metrics.metrics_query import MetricsQuestion
from monitor.runs.requested_run import AllRuns, RunInPath

router = APIRouter()
_FEW_POINTS = 2000
_LARGE_ANSWER = threading.Lock()  # one at a time: each takes tens of megabytes to make
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
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
