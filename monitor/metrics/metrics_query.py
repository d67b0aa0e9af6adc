"""One question about the metrics of a run, and its answer as JSON has it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from monitor.http.json_api import BadRequestError
from monitor.metrics.downsampling import Curve, Doubles, curve
from monitor.metrics.indexer import Progress
from monitor.metrics.store import IndexState, MetricTable, Store, X
from rundir.schema import EVENTS

MOST_VALUES = 60_000  # points of all series of one answer: about 5 MB of JSON
MOST_SERIES = 256
_FIGURES = {event.name: set(event.fields) for event in EVENTS if event.kind == "metric"}
_CURSOR = re.compile(r"(?P<identity>[0-9a-f]{16}):(?P<rows>(\d{1,9}=\d{1,15},?)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsQuestion:
    """What is asked for: series by name, where `train.*` and `*` are all of a kind."""

    series: tuple[str, ...] = ()
    from_step: float | None = None
    to_step: float | None = None
    from_t: float | None = None  # of what has no steps: host, gpu
    to_t: float | None = None
    points: int = 1000  # of each series
    after: str = ""  # the cursor of an earlier answer


@dataclass(frozen=True, slots=True)
class _Series:
    """One series: `train.rank.time_data_s@3` is the field time_data_s of the table train.rank@3."""

    name: str
    table_name: str
    field: str


def answer(
    store: Store, state: IndexState, question: MetricsQuestion, progress: Progress
) -> dict[str, Any]:
    """Return the answer from what is in the index.

    Raises BadRequestError for what cannot be answered, BrokenError for an index that is damaged.
    """
    tables = state.tables
    names = sorted(
        _full_name(name, field) for name in tables for field in tables[name].crcs if field != X
    )
    wanted = [_series(name, tables) for name in _expanded(question.series, names)]
    if len(wanted) > MOST_SERIES:
        raise BadRequestError(
            f"{len(wanted)} series are asked for at once", f"at most {MOST_SERIES}"
        )
    rows_before, is_reset = _rows_before(question.after, state.identity)
    curves, is_exact = _curves(store, tables, question, wanted, rows_before)
    table_names = {series.table_name for series in wanted} & tables.keys()
    rows = sorted((tables[name].number, tables[name].rows) for name in table_names)
    return {
        "series": curves,
        "exact": is_exact,
        "resumes": [asdict(resume) for resume in state.resumes],
        "names": names,
        "indexed": progress.as_json(),
        "reset": is_reset,
        "cursor": f"{state.identity}:" + ",".join(f"{number}={num}" for number, num in rows),
    }


def _full_name(table: str, field: str) -> str:
    name, at, key = table.partition("@")
    return f"{name}.{field}{at}{key}"


def _expanded(series: tuple[str, ...], names: list[str]) -> list[str]:
    """Return the names that are asked for, each once: `train.*` is what there is of it."""
    expanded: list[str] = []
    for wanted in series:
        if wanted.endswith("*") and "@" not in wanted:
            expanded += [name for name in names if name.startswith(wanted[:-1])]
        elif wanted.endswith("@*"):
            expanded += [name for name in names if name.partition("@")[0] == wanted[:-2]]
        else:
            expanded.append(wanted)
    return list(dict.fromkeys(expanded))


def _series(name: str, tables: dict[str, MetricTable]) -> _Series:
    """Return the series of that name. Raises BadRequestError if there can be none."""
    dotted, at, key = name.partition("@")
    event, _, field = dotted.rpartition(".")
    table_name = f"{event}{at}{key}"
    if table_name not in tables and field not in _FIGURES.get(event, ()):
        raise BadRequestError(
            f"no metric is called {name[:200]!r}",
            "names are EVENT.FIELD as in docs/run-folder.md, as train.loss; `names` has this run's",
        )
    return _Series(name, table_name, field)


def _rows_before(cursor: str, identity: str) -> tuple[dict[int, int], bool]:
    """Return the rows of each table that the asker has, and whether what it has is void."""
    if not cursor:
        return {}, False
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise BadRequestError(
            f"after is {cursor[:100]!r}", "the `cursor` of an earlier answer, as it was"
        )
    if match["identity"] != identity:
        return {}, True
    pairs = (pair.split("=") for pair in match["rows"].split(",") if pair)
    return {int(number): int(rows) for number, rows in pairs}, False


def _curves(
    store: Store,
    tables: dict[str, MetricTable],
    question: MetricsQuestion,
    wanted: list[_Series],
    rows_before: dict[int, int],
) -> tuple[dict[str, Any], bool]:
    """Return each series' curve as JSON, and whether all are exact."""
    rows = {
        series.table_name: _rows(store, tables[series.table_name], question, rows_before)
        for series in wanted
        if series.table_name in tables
    }
    points = question.points
    if sum(min(len(rows.get(series.table_name, ())), points) for series in wanted) > MOST_VALUES:
        points = max(1, MOST_VALUES // len(wanted))
    curves = {}
    for series in wanted:
        table = tables.get(series.table_name)
        drawn, by = Curve(), _axis(series.table_name)
        if table is not None and series.field in table.crcs:
            cut = slice(rows[series.table_name].start, rows[series.table_name].stop)
            x, values = (_values(store, table, field)[cut] for field in (X, series.field))
            drawn, by = curve(x, values, points), table.by
        curves[series.name] = drawn.as_json(by)
    return curves, all(len(range_) <= points for range_ in rows.values())


def _values(store: Store, table: MetricTable, field: str) -> Doubles:
    return np.frombuffer(store.values(table, field))


def _rows(
    store: Store, table: MetricTable, question: MetricsQuestion, rows_before: dict[int, int]
) -> range:
    """Return the rows of a table that are asked for; clocks are taken to go forward."""
    is_step = table.by == "step"
    low = question.from_step if is_step else question.from_t
    high = question.to_step if is_step else question.to_t
    first, end = 0, table.rows
    if low is not None or high is not None:
        x = _values(store, table, X)
        first = 0 if low is None else int(np.searchsorted(x, low))
        end = end if high is None else int(np.searchsorted(x, high, "right"))
    first = max(first, rows_before.get(table.number, 0))
    return range(first, max(first, end))


def _axis(table_name: str) -> str:
    event = table_name.partition("@")[0]
    return "step" if "step" in _FIGURES.get(event, ()) else "t"
