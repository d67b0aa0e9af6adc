"""The endpoints about answers; each docstring stands in docs/serve.md."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import Response, StreamingResponse

from monitor.answers.brief import brief_of
from monitor.answers.compare import Change, compare
from monitor.answers.find import datasets, run_with
from monitor.answers.history import Filter, examples, readable
from monitor.answers.snapshot_files import Example, raw_snapshot, read_snapshot, steps_of
from monitor.http.json_api import Json
from monitor.runs.requested_run import AllRuns, Limit, Offset
from rundir.paths import RunDir

router = APIRouter(prefix="/api/evolution")
_reading = threading.Lock()  # one request at a time holds snapshots in memory

RunName = Annotated[
    str, Query(alias="run", description="the run's id, or latest; else the newest with these")
]
Step = Annotated[
    int, BeforeValidator(lambda text: str(text).removeprefix("step_")), Path(ge=0, lt=10**12)
]
Format = Literal["jsonl", "csv"]
FORMATS: dict[Format, str] = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
COLUMNS = (
    *("run", "dataset", "step", "example_id", "input", "expected_output"),
    *("model_output", "exact_match", "similarity", "loss", "output_length"),
)
# What a spreadsheet takes for a formula if a cell begins with it, wide forms included.
_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


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


def export(run: RunDir, dataset: str, form: Format) -> Iterator[bytes]:
    """Yield the file, a snapshot at a time; snapshots that cannot be read are left out.

    Raises NotFoundError, before anything is yielded, if none can be.
    """
    steps = [brief.step for brief in readable(run, dataset)]
    return _parts(run, dataset, steps, form)


def _parts(run: RunDir, dataset: str, steps: Sequence[int], form: Format) -> Iterator[bytes]:
    if form == "csv":
        yield _csv([COLUMNS])
    for step in steps:
        rows = (
            _row(run, dataset, step, example)
            for example in read_snapshot(run, dataset, step).examples
        )
        if form == "csv":
            yield _csv([[safe_cell(value) for value in row.values()] for row in rows])
        else:
            yield "".join(json.dumps(row) + "\n" for row in rows).encode()


def _row(run: RunDir, dataset: str, step: int, example: Example) -> dict[str, Any]:
    where = (run.run_id, dataset, step, example.example_id, example.input, example.expected)
    return dict(zip(COLUMNS, (*where, *example.row().values()), strict=True))


def safe_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: text like one begins with a quote."""
    if isinstance(value, str) and _FORMULA.match(value):
        return "'" + value
    return value


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8", errors="replace")


def file_name(run: RunDir, dataset: str, form: Format) -> str:
    """Return what a browser may call the file: letters, digits, `.`, `_` and `-` only."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"{run.run_id}-{dataset}")[:120] + f".{form}"
