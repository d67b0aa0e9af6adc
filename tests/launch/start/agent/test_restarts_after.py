"""The restarts that the agent makes of those that are left, by what the ranks raised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch.config.resolve import resolve
from launch.start.agent.restarts import Restarts
from rundir.config_file import config_text
from rundir.events import EventWriter, read_events
from rundir.paths import RunDir, create_run
from rundir.prepared import Prepared, PreparedData, read_prepared, write_prepared

_IN_STEP = '  File "/a/train/step/loop.py", line 9, in _backward'
_AUTO = "model.gradient_checkpointing=auto"
_DATA = PreparedData(path="/d", num_samples=5, num_too_long=2, longest=3, end_token_id=9)


def failed_run(
    setting: str = _AUTO,
    recomputed: bool | int = 0,
    raised: str = "OutOfMemoryError",
    where: str = _IN_STEP,
) -> RunDir:
    """Return a run of eight blocks of which `recomputed` are recomputed; its rank 1 has raised."""
    run = create_run("tiny")
    config, sources = resolve("tiny", [setting], {})
    run.config.write_text(config_text(config, sources))
    run.plan.write_text(json.dumps({"rank": {"num_blocks": 8}}))
    write_prepared(
        run,
        Prepared(
            model_path="/m", train=_DATA, evaluation=None, resume_from=None, recomputed=recomputed
        ),
    )
    events = EventWriter(run.event_file("rank1"), rank=1)
    events.emit(
        "error", "rank.exception", exception=raised, message="", traceback=where, exit_code=11
    )
    return run


def after(run: RunDir, *lefts: int) -> list[tuple[int, int]]:
    """Return the answers after the failed attempt, looked at once for each number of restarts."""
    restarts = Restarts(run, EventWriter(run.event_file("agent")))
    return [restarts.after(0, left) for left in lefts]


def test_half_of_the_other_blocks_are_added_then_all_then_none() -> None:
    run = failed_run(recomputed=1)
    restarts = Restarts(run, EventWriter(run.event_file("agent")))
    assert restarts.after(0, 2) == (2, 1)
    assert read_prepared(run).recomputed == 5
    assert restarts.after(0, 0) == (0, 1)
    assert read_prepared(run).recomputed is True
    assert restarts.after(0, 2) == (2, 0)
    marks = [event for event in read_events(run.events) if event["name"] == "restart.recompute"]
    assert [(event["failed_rank"], event["recomputed"]) for event in marks] == [(1, 5), (1, True)]


def test_the_last_block_is_not_left_out() -> None:
    run = failed_run(recomputed=7)
    assert after(run, 0) == [(0, 1)]
    assert read_prepared(run).recomputed is True


@pytest.mark.parametrize(
    "run",
    [
        {"setting": "model.gradient_checkpointing=2"},
        {"recomputed": True},
        {"raised": "MemoryError"},
        {"where": f'  File "/a/train/evaluation/evaluator.py"\n{_IN_STEP}'},
        {"where": '  File "/a/train/model/loading.py"'},
    ],
    ids=["a number asked for", "all are", "the host is full", "in evaluation", "while it loads"],
)
def test_no_restart_is_added_where_more_blocks_would_not_help(run: dict[str, Any]) -> None:
    assert after(failed_run(**run), 0, 2) == [(0, 0), (2, 0)]


def test_a_choice_that_cannot_be_read_adds_none() -> None:
    run = failed_run()
    run.plan.unlink()
    assert after(run, 1) == [(1, 0)]


def test_after_an_error_that_only_people_mend_there_is_none() -> None:
    assert after(failed_run(raised="UserError"), 0, 2) == [(0, 0), (0, 0)]
