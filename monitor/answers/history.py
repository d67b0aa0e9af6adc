"""Examples over all steps: their timelines, and which of them are newly right, regressed, …"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from monitor.answers.brief import Brief, brief_of
from monitor.answers.snapshot_files import Example, read_snapshot, steps_of
from monitor.http.json_api import NotFoundError
from rundir.paths import RunDir

Filter = Literal["newly_right", "regressed", "never_right", "unstable"]
FILTERS: tuple[Filter, ...] = get_args(Filter)
_UNSTABLE = 2  # changes from wrong to right and back


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One example at each of the steps; None where a snapshot does not have it."""

    example_id: int
    is_right: list[bool | None]
    similarity: list[float | None]
    loss: list[float | None]

    def kinds(self, first: int, last: int) -> list[Filter]:
        """Return what the example is, from the `first` to the `last` position of the steps.

        Newly right compares these two; regressed is wrong now, and was right at any time between.
        """
        known = [is_right for is_right in self.is_right[first : last + 1] if is_right is not None]
        before, after = self.is_right[first], self.is_right[last]
        num_changes = sum(is_right != other for is_right, other in pairwise(known))
        changes = {
            "newly_right": before is False and after is True,
            "regressed": after is False and any(known),
            "never_right": bool(known) and not any(known),
            "unstable": num_changes >= _UNSTABLE,
        }
        return [name for name in FILTERS if changes[name]]


def timelines(briefs: Sequence[Brief]) -> list[Timeline]:
    """Return the timelines of all examples that any of the snapshots has, by their number."""
    places = [{number: place for place, number in enumerate(brief.ids)} for brief in briefs]
    timelines_ = []
    for number in sorted(set().union(*places)):
        at = [where.get(number) for where in places]
        timelines_.append(
            Timeline(
                example_id=number,
                is_right=[_right(*brief) for brief in zip(briefs, at, strict=True)],
                similarity=[
                    _value(brief_.similarity, i) for brief_, i in zip(briefs, at, strict=True)
                ],
                loss=[_value(brief_.loss, i) for brief_, i in zip(briefs, at, strict=True)],
            )
        )
    return timelines_


def _right(brief: Brief, place: int | None) -> bool | None:
    return None if place is None else bool(brief.is_right[place])


def _value(values: Sequence[float], place: int | None) -> float | None:
    if place is None or math.isnan(values[place]):
        return None
    return float(f"{values[place]:.6g}")


def readable(run: RunDir, dataset: str) -> list[Brief]:
    """Return all snapshots that can be read. Raises NotFoundError if there is none."""
    all_briefs = [brief_of(run, dataset, step) for step in steps_of(run, dataset)]
    whole = [brief for brief in all_briefs if not brief.error]
    if not whole:
        raise NotFoundError(
            f"no snapshot of {dataset!r} in {run.run_id} can be read: {all_briefs[0].error}",
            "api/evolution/datasets lists those of all runs",
        )
    return whole


def examples(
    run: RunDir,
    dataset: str,
    *,
    filter: str = "",  # noqa: A002 - as the parameter of the query is called
    search: str = "",
    limit: int = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """Return the examples' timelines; `filter` is one of FILTERS, and `search` text that they have.

    The text is looked for in prompts, expected answers, and the first and the last answers.
    """
    whole = readable(run, dataset)
    last = len(whole) - 1
    rows = [(timeline, timeline.kinds(0, last)) for timeline in timelines(whole)]
    counts = {name: sum(name in kinds for _, kinds in rows) for name in FILTERS}
    num_all = len(rows)
    rows = [row for row in rows if not filter or filter in row[1]]
    ends = [_by_number(run, dataset, whole[i].step) for i in ((0, last) if last else (0,))]
    if search:
        text = search.casefold()
        having = {number for end in ends for number, example in end.items() if example.has(text)}
        rows = [row for row in rows if row[0].example_id in having]
    shown = rows[offset : offset + limit]
    return {
        "dataset": dataset,
        "run": run.run_id,
        "steps": [brief.step for brief in whole],
        "counts": {"all": num_all, **counts},
        "total": len(rows),
        "examples": [_row(timeline, kinds, ends[-1]) for timeline, kinds in shown],
    }


def _by_number(run: RunDir, dataset: str, step: int) -> dict[int, Example]:
    examples = read_snapshot(run, dataset, step).examples
    return {example.example_id: example for example in examples}


def _row(timeline: Timeline, kinds: list[Filter], last: dict[int, Example]) -> dict[str, Any]:
    example = last.get(timeline.example_id)
    return {
        "example_id": timeline.example_id,
        "kinds": kinds,
        "input": example.input if example else None,
        "expected_output": example.expected if example else None,
        "model_output": example.output if example else None,
        "exact_match": timeline.is_right,
        "similarity": timeline.similarity,
        "loss": timeline.loss,
    }
