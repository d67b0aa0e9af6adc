"""What the pages of one run ask for, and the answers that a server would give."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

from monitor.answers.brief import brief_of
from monitor.answers.find import datasets
from monitor.answers.history import examples
from monitor.answers.snapshot_files import raw_snapshot, steps_of
from monitor.api.run_status import status_of
from monitor.http.json_api import BadRequestError
from monitor.metrics.index import Index
from monitor.metrics.metrics_query import MetricsQuestion
from monitor.runs.event_pages import events_page
from monitor.runs.incidents import incidents_of
from monitor.runs.logs import logs_page
from monitor.runs.run_config import config_of, mask_for
from monitor.runs.run_list import Runs
from rundir.masking import Mask
from rundir.paths import RunDir

Answers = dict[str, Any]
_POINTS = 1000  # of each series
_LEAST_POINTS = 250
_LINES = 1000  # the last of each log
_EVENTS = 200
_STARTS = ("prepare", "zygote.import", "zygote.build", "mem.post_model")
_MOST_EXAMPLES = 1 << 20  # all of them: the page asks for them in pieces
_INDEXING_S = 120.0  # at most, for a long run that nobody has looked at


def answers_of(run: RunDir, series: Sequence[str]) -> Answers:
    """Return the answers, by path or by path and query. Raises ApiError."""
    here, mask = f"api/runs/{quote(run.run_id, safe='')}", mask_for(run)
    return {
        f"{here}/status": status_of(run),
        f"{here}/config": config_of(run, mask),
        f"{here}/incidents": {"incidents": incidents_of(run, mask)},
        f"{here}/metrics": _metrics(run, tuple(series)),
        **{f"{here}/events?{query}": page for query, page in _events(run, mask).items()},
        **{f"{here}/logs{query}": page for query, page in _logs(run, mask).items()},
        **_evolution(run),
    }


def _metrics(run: RunDir, series: tuple[str, ...]) -> Any:
    until = time.monotonic() + _INDEXING_S
    points = _POINTS
    with closing(Index()) as index:
        while True:
            try:
                curves = index.metrics(run, MetricsQuestion(series=series, points=points))
            except BadRequestError:  # too many values: of hundreds of ranks
                if points <= _LEAST_POINTS:
                    raise
                points = _LEAST_POINTS
                continue
            if curves["indexed"].get("done", True) or time.monotonic() > until:
                return curves
            time.sleep(0.5)


def _events(run: RunDir, mask: Mask) -> Answers:
    answers = {
        f"last={_EVENTS}&kind={kind}": events_page(run, mask, last=_EVENTS, kind=kind)
        for kind in ("mark", "error")
    }
    starts = {
        f"name={name}&limit=6": events_page(run, mask, name=name, limit=6) for name in _STARTS
    }
    return answers | starts


def _logs(run: RunDir, mask: Mask) -> Answers:
    """Return the ends of the run's own log and of the ranks' last logs."""
    answers = {"": logs_page(run, mask, last=_LINES)}
    names = list(dict.fromkeys(file["name"] for file in answers[""]["files"]))[:20]
    for name in names:
        answers[f"?file={quote(name)}"] = logs_page(run, mask, file=name, last=_LINES)
    for page in answers.values():
        page["files"] = [{"name": name, "attempt": None} for name in names]
    return answers


def _evolution(run: RunDir) -> Answers:
    rows = datasets(Runs(run.path.parent), run.run_id)
    answers: Answers = {"api/evolution/datasets": {"datasets": rows}}
    for name in (row["name"] for row in rows):
        here = f"api/evolution/{quote(name, safe='')}"
        snapshots = [brief_of(run, name, step).row() for step in steps_of(run, name)]
        listed = {"dataset": name, "run": run.run_id, "snapshots": snapshots}
        answers[f"{here}/snapshots"] = listed
        answers[f"{here}/examples"] = examples(run, name, limit=_MOST_EXAMPLES)
        for snapshot in snapshots:
            if "error" not in snapshot:
                data, _ = raw_snapshot(run, name, snapshot["step"])
                answers[f"{here}/snapshot/{snapshot['step']}"] = json.loads(data)
    return answers
