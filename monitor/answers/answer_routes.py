"""The endpoints about answers; each docstring stands in docs/serve.md."""

from __future__ import annotations

import threading
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import Response, StreamingResponse

from monitor.answers.answer_export import FORMATS, Format, export, file_name
from monitor.answers.brief import brief_of
from monitor.answers.compare import Change, compare
from monitor.answers.find import datasets, run_with
from monitor.answers.history import Filter, examples
from monitor.answers.snapshot_files import raw_snapshot, steps_of
from monitor.http.json_answer import Json
from monitor.http.parameters import Limit, Offset
from monitor.runs.requested_run import AllRuns
from rundir.paths import RunDir

router = APIRouter(prefix="/api/evolution")
_reading = threading.Lock()  # one request at a time holds snapshots in memory

RunName = Annotated[
    str, Query(alias="run", description="the run's id, or latest; else the newest with these")
]
Step = Annotated[
    int, BeforeValidator(lambda text: str(text).removeprefix("step_")), Path(ge=0, lt=10**12)
]


class WantedPage(BaseModel):
    """Which of many examples are asked for."""

    search: str = Field("", description="text in a prompt or an answer")
    limit: Limit = 100
    offset: Offset = 0


class WantedChanges(WantedPage):
    """Which examples of a difference are asked for."""

    other_run: str = Field("", description="the run of step B; else the same")
    change: Literal["", Change] = Field("", description="only such examples")


class WantedExamples(WantedPage):
    """Which examples are asked for by their way."""

    filter: Literal["", Filter] = Field("", description="only such examples")


def _run_with(runs: AllRuns, dataset: str, name: RunName = "") -> RunDir:
    return run_with(runs, dataset, name)


RunWithAnswers = Annotated[RunDir, Depends(_run_with)]


@router.get("/datasets")
def list_datasets(runs: AllRuns, name: RunName = "") -> Json:
    """Data sets with answers."""
    with _reading:
        return Json({"datasets": datasets(runs, name)})


@router.get("/{dataset}/snapshots")
def list_snapshots(dataset: str, run: RunWithAnswers) -> Json:
    """The snapshots of one run."""
    with _reading:
        rows = [brief_of(run, dataset, step).row() for step in steps_of(run, dataset)]
    return Json({"dataset": dataset, "run": run.run_id, "snapshots": rows})


@router.get("/{dataset}/snapshot/{step}")
def one_snapshot(dataset: str, step: Step, run: RunWithAnswers) -> Response:
    """One snapshot, as the run has written it."""
    with _reading:
        data, _ = raw_snapshot(run, dataset, step)
    return Response(data, media_type="application/json")


@router.get("/{dataset}/diff/{a}/{b}")
def diff(
    dataset: str,
    a: Step,
    b: Step,
    runs: AllRuns,
    run: RunWithAnswers,
    wanted: Annotated[WantedChanges, Query()],
) -> Json:
    """What has changed between two steps, of one run or of two, word by word."""
    page = dict(wanted)
    other_run = page.pop("other_run")
    before, after = (run, a), (runs.find(other_run) if other_run else run, b)
    with _reading:
        return Json(compare(before, after, dataset, **page))


@router.get("/{dataset}/examples")
def list_examples(
    dataset: str, run: RunWithAnswers, wanted: Annotated[WantedExamples, Query()]
) -> Json:
    """The examples, each with its way over all steps."""
    with _reading:
        return Json(examples(run, dataset, **dict(wanted)))


@router.get("/{dataset}/export")
def download(
    dataset: str,
    run: RunWithAnswers,
    form: Annotated[Format, Query(alias="format", description="of the file")] = "jsonl",
) -> StreamingResponse:
    """All answers as a file: a line for each example and step."""
    return StreamingResponse(
        export(run, dataset, form),
        media_type=FORMATS[form],
        headers={"Content-Disposition": f'attachment; filename="{file_name(run, dataset, form)}"'},
    )
