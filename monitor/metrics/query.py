"""One question about the metrics of a run, and its answer as JSON has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from monitor.http.api_errors import BadRequestError
from monitor.metrics.buckets import Curve, curves, rows_between
from monitor.metrics.reader import Progress
from monitor.metrics.store import PartRow, Store
from rundir.schema import EVENTS

MOST_VALUES = 60_000  # points of all series of one answer: about 5 MB of JSON
MOST_SERIES = 256
_FIGURES = {one.name: set(one.fields) for one in EVENTS if one.kind == "metric"}
_CURSOR = re.compile(r"(?P<identity>[0-9a-f]{8}-\d{1,18}):(?P<rows>(\d{1,9}=\d{1,15},?)*)")

Rows = dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
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
    """One series: `train.rank.time_data_s@3` is the field time_data_s of the part train.rank@3."""

    name: str
    part: PartRow | None  # None: nothing of the kind has been measured yet
    field: str


def answer(store: Store, question: Question, progress: Progress) -> dict[str, Any]:
    """Return the answer from what is in the index. Raises BadRequestError for what cannot be."""
    with store.reading():
        parts = store.parts()
        fields = {part.name: store.fields(part.id) for part in parts.values()}
        names = sorted(_full_name(part, field) for part in fields for field in fields[part])
        wanted = [_found(name, parts) for name in _expanded(question.series, names)]
        if len(wanted) > MOST_SERIES:
            raise BadRequestError(
                f"{len(wanted)} series are asked for at once", f"at most {MOST_SERIES}"
            )
        identity = store.identity()
        known, is_reset = _known(question.after, identity)
        curves_, is_exact = _told(store, question, wanted, known)
        resumes = store.resumes()
    seen = {curve.part.id: curve.part.rows for curve in wanted if curve.part is not None}
    cursor = f"{identity}:" + ",".join(f"{part}={rows}" for part, rows in sorted(seen.items()))
    return {
        "series": curves_,
        "exact": is_exact,
        "resumes": [
            {"step": int(step), "attempt": attempt, "t": t, "run": run, "why": why}
            for step, attempt, t, run, why in resumes
        ],
        "names": names,
        "indexed": progress.told(),
        "reset": is_reset,
        "cursor": cursor,
    }


def _full_name(part: str, field: str) -> str:
    name, at, key = part.partition("@")
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


def _found(name: str, parts: dict[str, PartRow]) -> _Series:
    """Return the series of that name. Raises BadRequestError if there can be none."""
    dotted, at, key = name.partition("@")
    event, _, field = dotted.rpartition(".")
    part = parts.get(f"{event}{at}{key}")
    if part is None and field not in _FIGURES.get(event, ()):
        raise BadRequestError(
            f"no metric is called {name[:200]!r}",
            "names are EVENT.FIELD as in docs/run-folder.md, as train.loss; `names` has this run's",
        )
    return _Series(name, part, field)


def _known(cursor: str, identity: str) -> tuple[Rows, bool]:
    """Return the rows of each part that the asker has, and whether what it has is void."""
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
    return {int(part): int(rows) for part, rows in pairs}, False


def _told(
    store: Store, question: Question, wanted: list[_Series], known: Rows
) -> tuple[dict[str, Any], bool]:
    """Return each series' curve as JSON, and whether all are exact."""
    by_part: dict[PartRow | None, list[_Series]] = {}
    for curve in wanted:
        by_part.setdefault(curve.part, []).append(curve)
    rows = {part: _rows(store, question, part, known) for part in by_part if part is not None}
    points = _points({part: len(by_part[part]) for part in rows}, rows, question.points)
    answers: dict[str, Any] = {}
    is_exact = True
    for part, series in by_part.items():
        if part is None:
            answers |= {asked.name: Curve().told(_axis(asked.name)) for asked in series}
            continue
        fields = [asked.field for asked in series]
        drawn, is_all = curves(store, part, fields, rows[part], points)
        answers |= {asked.name: drawn[asked.field].told(part.by) for asked in series}
        is_exact = is_exact and is_all
    return {curve.name: answers[curve.name] for curve in wanted}, is_exact


def _rows(store: Store, question: Question, part: PartRow, known: Rows) -> range:
    """Return the rows of a part that are asked for."""
    low, high = (
        (question.from_step, question.to_step)
        if part.by == "step"
        else (question.from_t, question.to_t)
    )
    rows = rows_between(store, part, low, high)
    first = max(rows.start, known.get(part.id, 0))
    return range(first, max(first, rows.stop))


def _points(num: dict[PartRow, int], rows: dict[PartRow, range], points: int) -> int:
    """Return how many points each series gets: fewer than asked for if there are many series."""
    total = sum(num[part] * min(len(rows[part]), points) for part in num)
    return points if total <= MOST_VALUES else max(1, MOST_VALUES // sum(num.values()))


def _axis(name: str) -> str:
    event = name.partition("@")[0].rpartition(".")[0]
    return "step" if "step" in _FIGURES.get(event, ()) else "t"
