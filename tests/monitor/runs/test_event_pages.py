"""Events, page after page: in order, none lost, none twice, whatever the files look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.api.run_status import status_of
from monitor.http.json_api import BadRequestError
from monitor.runs import event_pages as events_module
from monitor.runs.event_pages import events_page
from monitor.runs.lines import packed
from rundir.masking import MASK, Mask
from rundir.paths import RunDir
from tests.monitor.serving import event, make_run


def _page(run: RunDir, **asked: Any) -> dict[str, Any]:
    return events_page(run, Mask([]), **asked)


def _all(run: RunDir, **asked: Any) -> list[float]:
    """Return the times of all events, by as many requests as it takes."""
    found, after = [], ""
    while True:
        page = _page(run, after=after, **asked)
        found += [one["t"] for one in page["events"]]
        assert page["cursor"] != after or not page["more"], "no way on"
        after = page["cursor"]
        if not page["more"]:
            return found


def test_events_of_all_writers_come_once_and_in_order_of_time(folder: Path) -> None:
    rows = {f"rank{rank}": [event(10 * n + rank) for n in range(30)] for rank in range(8)}
    run = RunDir(make_run(folder, events=rows))
    expected = sorted(one["t"] for each in rows.values() for one in each)
    for limit in (1, 7, 1000):
        assert _all(run, limit=limit) == expected


def test_a_torn_line_waits_until_it_is_whole_and_a_broken_one_is_left_out(folder: Path) -> None:
    run = RunDir(make_run(folder, events={"rank0": [event(1.0)]}))
    file = run.event_file("rank0")
    whole = json.dumps(event(3.0))
    with file.open("a") as out:
        out.write('{"v": 1, "t": 2.0, "mo\n')  # a full disk
        out.write('[]\n"text"\n{"t": "no number"}\n' + "[" * 100_000 + "\n")
        out.write(whole[:20])
    first = _page(run)
    assert [each["t"] for each in first["events"]] == [1.0]
    with file.open("a") as out:
        out.write(whole[20:] + "\n")
    assert [each["t"] for each in _page(run, after=first["cursor"])["events"]] == [3.0]
    assert status_of(run)["state"] == "done"


def test_a_filter_passes_over_what_is_not_asked_for_within_a_budget(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [event(n, "line") for n in range(5000)] + [event(5000, "hang", "error")]
    run = RunDir(make_run(folder, events={"launch": rows, "rank0": rows[:1000]}))
    monkeypatch.setattr(events_module, "_BUDGET_BYTES", 64 << 10)
    first = _page(run, name="hang")
    assert first["events"] == []
    assert first["more"]
    assert _all(run, name="hang") == [5000]
    assert _all(run, kind="mark") == []


def test_the_last_events_come_without_reading_the_first(folder: Path) -> None:
    run = RunDir(make_run(folder, events={"rank0": [event(n) for n in range(10_000)]}))
    page = _page(run, last=3)
    assert [one["t"] for one in page["events"]] == [9997, 9998, 9999]
    assert not page["more"]
    assert _page(run, after=page["cursor"])["events"] == []
    with (run.events / "rank0.jsonl").open("a") as out:
        out.write(json.dumps(event(10_000)) + "\n")
    assert [one["t"] for one in _page(run, after=page["cursor"])["events"]] == [10_000]


def test_a_line_without_an_end_is_passed_over(folder: Path) -> None:
    run = RunDir(make_run(folder))
    file = run.events / "rank0.jsonl"
    file.write_bytes(b"x" * (3 << 20) + b"\n" + json.dumps(event(1.0)).encode() + b"\n")
    assert _all(run) == [1.0]


@pytest.mark.parametrize("cursor", ["x", "%00", "eJw", "ä" * 9, "A" * 5000])
def test_a_cursor_that_is_none_is_refused(folder: Path, cursor: str) -> None:
    run = RunDir(make_run(folder))
    with pytest.raises(BadRequestError, match="cursor"):
        _page(run, after=cursor)


def test_a_cursor_beyond_the_file_or_of_other_files_reads_nothing_else(folder: Path) -> None:
    run = RunDir(make_run(folder, events={"rank0": [event(1.0)]}))
    assert _page(run, after=packed({"rank0": 10**9}))["events"] == []
    assert _page(run, after=packed({"../config": 0}))["events"][0]["t"] == 1.0


def test_secrets_in_events_are_masked(folder: Path) -> None:
    token = "hf_" + "a1B2" * 8
    rows = [
        event(1.0, "rank.exception", "error", message=f"401 for token={token}"),
        event(2.0, "line", text=f"using {token}"),
    ]
    run = RunDir(make_run(folder, events={"rank0": rows}))
    page = json.dumps(_page(run))
    assert token not in page
    assert MASK in page
