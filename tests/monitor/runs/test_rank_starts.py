"""How a rank came up is read once from its events, however many it writes afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monitor.runs import rank_starts as module
from monitor.runs.rank_starts import timeline
from rundir.events import EventWriter, parse_line
from rundir.paths import RunDir

TIMES = {"time_data_s": 0.1, "time_compute_s": 0.1, "time_wait_s": 0.1}


@pytest.fixture
def run(folder: Path) -> RunDir:
    made = RunDir(folder / "20260101-000000-tiny-0001")
    made.events.mkdir(parents=True)
    return made


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the lines that are parsed, as that happens."""
    seen: list[bytes] = []

    def parse(line: bytes) -> Any:
        seen.append(line)
        return parse_line(line)

    monkeypatch.setattr(module, "parse_line", parse)
    return seen


def writer_of(run: RunDir, rank: int) -> EventWriter:
    return EventWriter(run.event_file(f"rank{rank}"), rank=rank)


def phases(run: RunDir, rank: int) -> list[str]:
    return [one["phase"] for one in timeline(run, rank, 0)]


def test_the_start_of_a_rank_that_trains_is_over_with_its_first_step(
    run: RunDir, parsed: list[bytes]
) -> None:
    events = writer_of(run, 1)  # only rank 0 writes the metric of all
    with events.span("import"):
        pass
    for step in range(1, 50):
        events.emit("metric", "train.rank", step=step, num_steps=1, **TIMES)
    assert phases(run, 1) == ["import"]
    assert len(parsed) == 3
    with events.span("model.load"):
        pass
    assert phases(run, 1) == ["import"]
    assert len(parsed) == 3


def test_of_a_rank_that_never_trains_each_line_is_parsed_once(
    run: RunDir, parsed: list[bytes]
) -> None:
    events = writer_of(run, 2)
    events.emit("start", "import")
    for _ in range(3):
        events.emit("start", "lock.wait")
        events.emit("end", "lock.wait", duration_s=1.0, ok=True)
    before = timeline(run, 2, 0)
    assert [one["end_t"] is None for one in before] == [True, False, False, False]
    assert len(parsed) == 7
    events.emit("end", "import", duration_s=1.0, ok=True)
    after = timeline(run, 2, 0)
    assert all(one["end_t"] is not None for one in after)
    assert before[0]["end_t"] is None  # what was answered before stays as it was
    assert len(parsed) == 8
    assert timeline(run, 2, 0) == after
    assert len(parsed) == 8


def test_a_rank_without_events_is_asked_again(run: RunDir) -> None:
    assert timeline(run, 3, 0) == []
    with writer_of(run, 3).span("import"):
        pass
    assert phases(run, 3) == ["import"]
