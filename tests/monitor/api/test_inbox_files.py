"""The list of what was dropped into an inbox: in order, and in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inbox.jobs import InboxJob
from inbox.layout import Layout
from monitor.api.inbox_files import inbox_files


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return an inbox with three jobs that are over, and two that wait."""
    found = Layout(tmp_path / "box")
    found.create()
    found.lock.touch()
    put(found.done, 1, "low")
    put(found.done, 2, "high")
    put(found.failed, 3, "normal")
    put(found.queue, 4, "low")
    put(found.queue, 5, "high")
    return found


def put(state: Path, number: int, priority: str) -> None:
    name = f"{number}.jsonl"
    job = InboxJob(id=f"{number:06d}-x-0000", name=name, priority=priority, dropped_t=1.0)
    job.folder = state / job.id
    job.folder.mkdir()
    job.write()


def test_what_waits_is_in_the_order_of_training_and_what_is_over_the_newest_first(
    layout: Layout,
) -> None:
    names = [one["name"][0] for one in inbox_files(layout.path, limit=9, offset=0)["files"]]
    assert names == ["5", "4", "3", "2", "1"]
    page = inbox_files(layout.path, limit=2, offset=3)
    assert [one["name"][0] for one in page["files"]] == ["2", "1"]
    assert page["total"] == 5


def test_of_what_is_over_only_the_records_that_are_shown_are_read(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = [], Path.read_text

    def noted(path: Path, **options: Any) -> str:
        read.append(path.parent)
        return real(path, **options)

    monkeypatch.setattr(Path, "read_text", noted)
    inbox_files(layout.path, limit=4, offset=0)
    over = {folder.name for folder in read if folder.parent in (layout.done, layout.failed)}
    assert over == {"000003-x-0000", "000002-x-0000"}
