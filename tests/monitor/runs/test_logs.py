"""Logs: their lines by number, from a cursor on, the last ones; masked, and as one reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monitor.http.json_api import NotFoundError
from monitor.runs.logs import log_files, logs_page, shown
from rundir.masking import MASK, Mask
from rundir.paths import RunDir
from tests.monitor.serving import make_run


@pytest.fixture
def run(folder: Path) -> RunDir:
    """Make a run with two attempts of twelve ranks, and a long log."""
    path = make_run(folder)
    (path / "logs/attempt1").mkdir()
    for attempt in (0, 1):
        for rank in range(12):
            text = f"attempt {attempt} of rank {rank}\n"
            (path / f"logs/attempt{attempt}/rank{rank}.log").write_text(text)
    (path / "logs/agent.log").write_text("".join(f"line {n}\n" for n in range(1, 3001)))
    return RunDir(path)


def _page(run: RunDir, **asked: Any) -> dict[str, Any]:
    return logs_page(run, Mask([]), **asked)


def _numbers(page: dict[str, Any]) -> list[int | None]:
    return [line["n"] for line in page["lines"]]


def test_files_are_listed_with_ranks_in_order(run: RunDir) -> None:
    names = [log.name for log in log_files(run) if log.attempt == 1]
    assert names == [f"rank{rank}" for rank in range(12)]


def test_a_rank_without_an_attempt_is_of_the_last_one(run: RunDir) -> None:
    assert _page(run, file="rank3")["lines"] == [{"n": 1, "text": "attempt 1 of rank 3"}]
    assert _page(run, file="rank3", attempt=0)["lines"][0]["text"] == "attempt 0 of rank 3"
    with pytest.raises(NotFoundError, match="no log"):
        _page(run, file="rank3", attempt=2)
    with pytest.raises(NotFoundError, match="no log"):
        _page(run, file="../config")


def test_lines_have_their_numbers_however_they_are_asked_for(run: RunDir) -> None:
    first = _page(run, file="agent", limit=10)
    assert _numbers(first) == list(range(1, 11))
    onward = _page(run, file="agent", limit=5, after=first["cursor"])
    assert _numbers(onward) == [11, 12, 13, 14, 15]
    assert _numbers(_page(run, file="agent", limit=2, offset=2000)) == [2001, 2002]
    last = _page(run, file="agent", last=2)
    assert last["lines"][-1] == {"n": 3000, "text": "line 3000"}
    assert _page(run, file="agent", after=last["cursor"])["lines"] == []
    with (run.path / "logs/agent.log").open("a") as out:
        out.write("line 3001\nline 30")
    assert _numbers(_page(run, file="agent", after=last["cursor"])) == [3001]
    found = _page(run, file="agent", search="LINE 77")
    assert _numbers(found) == [77, *range(770, 780)]


def test_secrets_and_escapes_are_not_shown(run: RunDir) -> None:
    token = "hf_" + "a1B2" * 8
    text = f"\x1b[31mred\x1b[0m {token}\n  1%|\r 50%|\r100%|done\n\x1b]8;;http://x\x07link\n"
    (run.path / "logs/run.log").write_text(text)
    lines = [line["text"] for line in _page(run, file="run")["lines"]]
    assert lines == [f"red {MASK}", "100%|done", "link"]


def test_a_line_of_any_length_is_cut_where_it_is_shown() -> None:
    assert len(shown(b"x" * 10_000_000)) < 21_000
