"""What was dropped is taken once it is complete, and not before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inbox.arrivals import Arrivals
from inbox.layout import Layout

SETTLE_S = 5.0


class Looks:
    """Looks at an inbox at chosen times of a monotonic clock."""

    def __init__(self, layout: Layout) -> None:
        self.now_s = 1000.0
        self.arrivals = Arrivals(layout, SETTLE_S, lambda: self.now_s)

    def after(self, seconds: float) -> list[str]:
        """Return the names of what can be taken so many seconds after the last look."""
        self.now_s += seconds
        return [arrival.path.name for arrival in self.arrivals.scan().ready]

    def why(self, path: Path) -> str:
        return self.arrivals.scan().waiting.get(path, "")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    created = Layout(tmp_path)
    created.create()
    return created


@pytest.fixture
def looks(layout: Layout) -> Looks:
    return Looks(layout)


def test_a_file_is_taken_once_it_has_not_changed_for_the_settle_time(
    layout: Layout, looks: Looks
) -> None:
    file = layout.inbox / "a.jsonl"
    file.write_text("x")
    assert looks.after(0) == []
    assert looks.after(SETTLE_S - 1) == []
    file.write_text("xy")
    assert looks.after(1) == []
    assert looks.after(SETTLE_S - 0.1) == []
    assert looks.after(0.1) == ["a.jsonl"]


def test_what_has_its_ready_marker_is_taken_at_once(layout: Layout, looks: Looks) -> None:
    (layout.inbox / "a.jsonl").write_text("x")
    (layout.inbox / "a.jsonl.ready").touch()
    (layout.inbox / "set").mkdir()
    (layout.inbox / "set/a.jsonl").write_text("x")
    (layout.inbox / "set/.ready").touch()
    assert looks.after(0) == ["a.jsonl", "set"]


def test_hidden_and_unfinished_names_are_never_taken(layout: Layout, looks: Looks) -> None:
    for name in (".a.jsonl", "a.jsonl.tmp", "a.jsonl.part", "a.jsonl~", "b.ready"):
        (layout.inbox / name).write_text("x")
    looks.after(0)
    assert looks.after(1000) == []
    assert looks.arrivals.scan().waiting == {}


def test_a_folder_is_complete_when_nothing_in_it_has_changed_or_is_unfinished(
    layout: Layout, looks: Looks
) -> None:
    folder = layout.inbox / "set/deeper"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text("x")
    looks.after(0)
    looks.after(SETTLE_S - 1)
    (folder / "b.jsonl.part").write_text("x")
    assert looks.after(1000) == []
    assert "b.jsonl.part" in looks.why(layout.inbox / "set")
    (folder / "b.jsonl.part").rename(folder / "b.jsonl")
    assert looks.after(1) == []
    assert looks.after(SETTLE_S) == ["set"]


def test_a_clock_that_jumps_back_neither_hurries_nor_delays(layout: Layout, looks: Looks) -> None:
    file = layout.inbox / "a.jsonl"
    file.write_text("x")
    os.utime(file, (10**9 * 3, 10**9 * 3))  # in 2065, as before the clock was set right
    looks.after(0)
    looks.after(SETTLE_S - 1)
    os.utime(file, (10**6, 10**6))  # written again, in 1970
    assert looks.after(1) == []
    assert looks.after(SETTLE_S) == ["a.jsonl"]


def test_a_file_that_is_held_open_for_writing_is_not_complete(layout: Layout, looks: Looks) -> None:
    file = layout.inbox / "a.jsonl"
    with file.open("w") as writer:
        writer.write("x")
        writer.flush()
        looks.after(0)
        assert looks.after(1000) == []
        assert "open for writing" in looks.why(file)
    assert looks.after(0) == ["a.jsonl"]


def test_what_can_never_be_taken_is_told_of(layout: Layout, looks: Looks, tmp_path: Path) -> None:
    os.mkfifo(layout.inbox / "pipe")
    (layout.inbox / "link").symlink_to("../somewhere")
    (layout.inbox / "gone").symlink_to(tmp_path / "not there")
    (layout.inbox / "empty").touch()
    looks.after(0)
    assert looks.after(1000) == []
    assert "neither a file nor a folder" in looks.why(layout.inbox / "pipe")
    assert "make it absolute" in looks.why(layout.inbox / "link")
    assert "cannot be read" in looks.why(layout.inbox / "gone")
    assert looks.why(layout.inbox / "empty") == "is empty"


def test_priorities_are_those_of_the_folders(layout: Layout, looks: Looks) -> None:
    for drop in layout.drops().values():
        (drop / f"in {drop.name}").write_text("x")
    looks.after(0)
    looks.now_s += SETTLE_S
    priorities = {arrival.path.name: arrival.priority for arrival in looks.arrivals.scan().ready}
    assert priorities == {"in high": "high", "in inbox": "normal", "in low": "low"}
