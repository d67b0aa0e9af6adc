"""Which runs have answers, and to which data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from monitor.answers.brief import Brief, brief_of
from monitor.answers.snapshot_files import datasets_of, steps_of
from monitor.http.json_api import NotFoundError
from monitor.runs.run_list import Runs
from rundir.paths import RunDir

MOST_RUNS = 1000  # the newest, in which answers are looked for


def run_with(runs: Runs, dataset: str, name: str = "") -> RunDir:
    """Return the run called `name`; without one the newest that has answers to `dataset`.

    Raises NotFoundError, with the data sets that there are.
    """
    if name:
        return runs.find(name)
    for run in _newest(runs):
        with suppress(NotFoundError):
            steps_of(run, dataset)
            return run
    known = sorted({dataset_ for run in _newest(runs) for dataset_ in datasets_of(run)})
    names = ", ".join(map(repr, known[:20])) or "none yet"
    raise NotFoundError(
        f"no run has answers to {dataset[:200]!r}; there are answers to: {names}",
        "api/evolution/datasets lists them; ./airlock serve --demo has some to look at",
    )


def datasets(runs: Runs, name: str = "") -> list[dict[str, Any]]:
    """Return each data set, with the newest run that has answers to it, and all that have.

    With `name`, those of that run only. Raises NotFoundError if there is no such run.
    """
    runs_of: dict[str, list[RunDir]] = {}
    for run in [runs.find(name)] if name else _newest(runs):
        for dataset in datasets_of(run):
            runs_of.setdefault(dataset, []).append(run)
    rows = (_row(dataset, having) for dataset, having in sorted(runs_of.items()))
    return [row for row in rows if row]


def _row(dataset: str, having: list[RunDir]) -> dict[str, Any]:
    for run in having:
        with suppress(NotFoundError):  # it has been removed meanwhile
            steps = steps_of(run, dataset)
            last = _last_readable(run, dataset, steps)
            return {
                "name": dataset,
                "hash": last.dataset_hash,
                "num_snapshots": len(steps),
                "first_step": steps[0],
                "last_step": steps[-1],
                "num_examples": len(last.ids),
                "run": run.run_id,
                "runs": [each.run_id for each in having],
            }
    return {}


def _last_readable(run: RunDir, dataset: str, steps: list[int]) -> Brief:
    for step in reversed(steps[-3:]):
        brief = brief_of(run, dataset, step)
        if not brief.error:
            return brief
    return brief


def _newest(runs: Runs) -> Iterator[RunDir]:
    """Yield the runs: `latest` points at the first, the newest ones follow."""
    with suppress(NotFoundError):
        latest = runs.latest_id()
        yield RunDir(runs.folder / latest)
        for run_id in runs.ids()[:MOST_RUNS]:
            if run_id != latest:
                yield RunDir(runs.folder / run_id)
