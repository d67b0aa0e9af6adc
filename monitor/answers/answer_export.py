"""All answers of a data set as one file: a line for each example and step, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from monitor.answers.history import readable
from monitor.answers.snapshot_files import Example, read_snapshot
from rundir.paths import RunDir

Format = Literal["jsonl", "csv"]
FORMATS: dict[Format, str] = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
COLUMNS = (
    *("run", "dataset", "step", "example_id", "input", "expected_output"),
    *("model_output", "exact_match", "similarity", "loss", "output_length"),
)
# What a spreadsheet takes for a formula if a cell begins with it, wide forms included.
_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


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
