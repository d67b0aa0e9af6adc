"""The routes about answers: each with its parameters, and the work."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from monitor.answers.answer_export import FORMATS, export, file_name
from monitor.answers.brief import Brief, Briefs
from monitor.answers.compare import CHANGES, At, compare
from monitor.answers.find import datasets, run_with
from monitor.answers.history import FILTERS, examples
from monitor.answers.snapshot_files import raw_snapshot, step_named, steps_of
from monitor.http.endpoint import OFFSET, Param, endpoint, limited

_briefs = Briefs()
_reading = threading.Lock()


def _one_at_a_time(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return `work` such that one request at a time holds snapshots in memory."""

    @functools.wraps(work)
    def wait_and_work(*given: Any, **named: Any) -> Any:
        with _reading:
            return work(*given, **named)

    return wait_and_work


_RUN = Param(name="run", default="", meaning="the run's id, or latest; else the newest with these")
_SEARCH = Param(name="search", default="", meaning="text in a prompt or an answer")
_PAGE = (limited(100), OFFSET)


def routes() -> list[BaseRoute]:
    """Return the routes."""
    here = "/api/evolution"
    return [
        endpoint(f"{here}/datasets", list_datasets, "Data sets with answers", [_RUN]),
        endpoint(
            f"{here}/{{dataset}}/snapshots", list_snapshots, "The snapshots of one run", [_RUN]
        ),
        endpoint(
            f"{here}/{{dataset}}/snapshot/{{step}}",
            one_snapshot,
            "One snapshot, as the run has written it",
            [_RUN],
        ),
        endpoint(
            f"{here}/{{dataset}}/diff/{{a}}/{{b}}",
            diff,
            "What has changed between two steps, of one run or of two, word by word",
            [
                _RUN,
                Param(name="other_run", default="", meaning="the run of step B; else the same"),
                Param(
                    name="change", default="", choices=("", *CHANGES), meaning="only such examples"
                ),
                _SEARCH,
                *_PAGE,
            ],
        ),
        endpoint(
            f"{here}/{{dataset}}/examples",
            list_examples,
            "The examples, each with its way over all steps",
            [
                _RUN,
                Param(
                    name="filter", default="", choices=("", *FILTERS), meaning="only such examples"
                ),
                _SEARCH,
                *_PAGE,
            ],
        ),
        endpoint(
            f"{here}/{{dataset}}/export",
            download,
            "All answers as a file: a line for each example and step",
            [
                _RUN,
                Param(
                    name="format", default="jsonl", choices=tuple(FORMATS), meaning="of the file"
                ),
            ],
        ),
    ]


@_one_at_a_time
def list_datasets(request: Request, *, run: str) -> Any:
    """Return the data sets of one run, or of all."""
    return {"datasets": datasets(request.app.state.runs, _briefs, run)}


@_one_at_a_time
def list_snapshots(request: Request, *, dataset: str, run: str) -> Any:
    """Return each snapshot without its examples; one that cannot be read has an `error`."""
    found_run = run_with(request.app.state.runs, dataset, run)
    snapshots = [
        _told(_briefs.of(found_run, dataset, step)) for step in steps_of(found_run, dataset)
    ]
    return {"dataset": dataset, "run": found_run.run_id, "snapshots": snapshots}


def _told(brief: Brief) -> dict[str, Any]:
    if brief.error:
        return {"step": brief.step, "error": brief.error}
    return {
        "step": brief.step,
        "timestamp": brief.timestamp,
        "summary": brief.summary,
        "cost": brief.cost,
        "left_out_steps": brief.left_out_steps,
        "dataset_hash": brief.dataset_hash,
    }


@_one_at_a_time
def one_snapshot(request: Request, *, dataset: str, step: str, run: str) -> Response:
    """Return the file itself."""
    number = step_named(step)
    found_run = run_with(request.app.state.runs, dataset, run)
    data, _ = raw_snapshot(found_run, dataset, number)
    return Response(data, media_type="application/json")


@_one_at_a_time
def diff(
    request: Request, *, dataset: str, a: str, b: str, run: str, other_run: str, **shown: Any
) -> Any:
    """Return the examples that both snapshots have, with what has changed."""
    steps = step_named(a), step_named(b)
    runs = request.app.state.runs
    found_run = run_with(runs, dataset, run)
    other = runs.find(other_run) if other_run else found_run
    return compare(At(found_run, steps[0]), At(other, steps[1]), dataset, **shown)


@_one_at_a_time
def list_examples(
    request: Request,
    *,
    dataset: str,
    run: str,
    filter: str,  # noqa: A002 - as the parameter is called
    search: str,
    limit: int,
    offset: int,
) -> Any:
    """Return the examples' timelines."""
    found_run = run_with(request.app.state.runs, dataset, run)
    return examples(
        _briefs, found_run, dataset, wanted=filter, search=search, limit=limit, offset=offset
    )


def download(request: Request, *, dataset: str, run: str, format: str) -> Response:  # noqa: A002
    """Return the file, made while it is sent."""
    found_run = run_with(request.app.state.runs, dataset, run)
    name = file_name(found_run, dataset, format)
    return StreamingResponse(
        export(_briefs, found_run, dataset, format),
        media_type=FORMATS[format],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
