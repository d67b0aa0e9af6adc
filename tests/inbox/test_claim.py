"""Taking what was dropped: by renames, into one place, over nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from inbox import claim
from inbox.arrivals import Arrival
from inbox.jobs import jobs_in
from inbox.layout import Layout
from tests.conftest import bound, mounted


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    created = Layout(tmp_path / "served")
    created.create()
    return created


def dropped(layout: Layout, name: str = "a.jsonl", text: str = "x") -> Arrival:
    path = layout.inbox / name
    path.write_text(text)
    return Arrival(path=path, priority="normal")


def test_files_of_the_same_name_become_jobs_of_their_own(layout: Layout) -> None:
    jobs = [claim.claim(layout, dropped(layout, text=text)) for text in "xyz"]
    assert len({job.id for job in jobs}) == 3
    assert [job.data.read_text() for job in jobs] == ["x", "y", "z"]
    assert [job.id for job in jobs_in(layout.queue)] == [job.id for job in jobs]


@pytest.mark.parametrize("name", ["ümläut 'q\" n, 2:0.5.jsonl", "-n", "x" * 250, "\udcff.txt"])
def test_any_name_can_be_taken(layout: Layout, name: str) -> None:
    job = claim.claim(layout, dropped(layout, name))
    assert job.data.name == name
    assert jobs_in(layout.queue)[0].data.read_text() == "x"
    assert len(f"{job.id}.99") <= 40


def test_an_inbox_on_another_file_system_is_taken_from_without_a_copy_with_its_ready_marker(
    layout: Layout, tmp_path: Path
) -> None:
    with mounted(tmp_path / "other", "1m") as other, bound(other, layout.inbox):
        layout.create()
        arrival = dropped(layout)
        arrival.marker.touch()
        inode = arrival.path.stat().st_ino
        job = claim.claim(layout, arrival)
        assert jobs_in(layout.queue)[0].id == job.id
        assert job.data.read_text() == "x"
        assert job.data.stat().st_ino == inode
        assert not arrival.path.exists()
        assert not arrival.marker.exists()
        taken = layout.inbox / ".taken" / job.id
        assert job.data.resolve().is_relative_to(taken)
        assert (taken / "a.jsonl.ready").exists()


def test_the_ready_marker_goes_along_even_if_a_kill_has_left_it(layout: Layout) -> None:
    arrival = dropped(layout)
    arrival.marker.touch()
    job = claim.claim(layout, arrival)
    (job.folder / "ready").rename(arrival.marker)
    job.folder.rename(layout.queue / f".{job.id}")
    assert [recovered.id for recovered in claim.recover(layout)] == [job.id]
    assert sorted(path.name for path in layout.inbox.iterdir()) == ["high", "low"]


def test_one_killed_while_it_takes_from_another_file_system_is_recovered(
    layout: Layout, tmp_path: Path
) -> None:
    with mounted(tmp_path / "other", "1m") as other, bound(other, layout.inbox):
        job = claim.claim(layout, dropped(layout))
        job.data.unlink()  # as if killed before the link was made
        job.folder.rename(layout.queue / f".{job.id}")
        assert [recovered.id for recovered in claim.recover(layout)] == [job.id]
        assert jobs_in(layout.queue)[0].data.read_text() == "x"


def test_what_cannot_be_taken_stays_where_it_is(layout: Layout) -> None:
    arrival = dropped(layout)
    with bound(layout.inbox, layout.inbox, "ro"):
        with pytest.raises(OSError, match="Read-only"):
            claim.claim(layout, arrival)
        assert arrival.path.read_text() == "x"
    assert list(layout.queue.iterdir()) == []


def test_a_claim_that_had_moved_nothing_is_undone_and_data_without_a_record_left_alone(
    layout: Layout,
) -> None:
    job = claim.claim(layout, dropped(layout))
    job.data.rename(layout.inbox / "a.jsonl")
    job.folder.rename(layout.queue / f".{job.id}")
    assert claim.recover(layout) == []
    assert list(layout.queue.iterdir()) == []
    assert (layout.inbox / "a.jsonl").read_text() == "x"

    job = claim.claim(layout, dropped(layout))
    (job.folder / "job.json").unlink()
    hidden = job.folder.rename(layout.queue / f".{job.id}")
    assert claim.recover(layout) == []
    assert (hidden / "data/a.jsonl").read_text() == "x"


def test_a_full_disk_leaves_the_file_in_the_inbox(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "256k") as disk:
        layout = Layout(disk)
        layout.create()
        arrival = dropped(layout)
        fill = disk / "fill"
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        with pytest.raises(OSError, match="No space left"):
            claim.claim(layout, arrival)
        assert arrival.path.read_text() == "x"
        assert list(layout.queue.iterdir()) == []
        fill.unlink()
        assert claim.claim(layout, arrival).data.read_text() == "x"


def test_added_files_stay_where_they_are(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.jsonl").write_text("x")
    file, folder = (claim.add(layout, tmp_path / name, "low") for name in ("mine/a.jsonl", "mine"))
    assert (tmp_path / "mine/a.jsonl").read_text() == "x"
    assert file.data.read_text() == (folder.data / "a.jsonl").read_text() == "x"
    assert {job.priority for job in jobs_in(layout.queue)} == {"low"}
