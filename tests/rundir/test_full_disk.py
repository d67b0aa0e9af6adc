"""A disk that is really full: existing files stay, and what can continue does."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from rundir.atomic import new_folder, require_space, write_text
from rundir.events import EventWriter, read_events


class SmallDisk:
    """A file system of 1 MiB that can be filled and freed again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filling = folder / "filling"

    def fill(self) -> None:
        """Take every free block."""
        with self._filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"0" * 4096):
                pass

    def free(self) -> None:
        self._filling.unlink()


@pytest.fixture
def disk(small_disk: Path) -> SmallDisk:
    return SmallDisk(small_disk)


def test_events_that_cannot_be_written_are_counted_and_said_once_and_a_spans_block_runs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    events = EventWriter(Path("/dev/full"))
    for i in range(3):
        events.emit("log", "line", text=str(i))
    ran = False
    with events.span("import"):
        ran = True
    assert ran
    assert events.num_lost == 5
    assert capfd.readouterr().err.count("events are being lost") == 1


def test_an_event_torn_by_a_full_disk_is_counted_and_takes_no_other_with_it(
    disk: SmallDisk,
) -> None:
    events = EventWriter(disk.folder / "rank0.jsonl", rank=0)
    events.emit("log", "line", text="x" * 3700)  # ends a little before the end of a block
    disk.fill()
    for i in range(5):
        events.emit("log", "line", text=f"lost {i}" + "y" * 200)
    disk.free()
    events.emit("log", "line", text="after 1")
    events.emit("log", "line", text="after 2")
    kept = [event["text"] for event in read_events(disk.folder)]
    assert kept[1:] == ["after 1", "after 2"]
    assert events.num_lost == 5


def test_a_file_that_cannot_be_replaced_stays_as_it_was(disk: SmallDisk) -> None:
    path = disk.folder / "status.json"
    write_text(path, "old")
    disk.fill()
    with pytest.raises(OSError, match="No space left") as raised:
        write_text(path, "new" * 10_000)
    assert raised.value.errno == errno.ENOSPC
    assert path.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in disk.folder.iterdir()) == ["filling", "status.json"]


def test_a_folder_that_does_not_fit_leaves_nothing(disk: SmallDisk) -> None:
    def make() -> None:
        with new_folder(disk.folder / "data") as folder:
            (folder / "fits").write_bytes(b"0" * 4096)
            (folder / "does_not").write_bytes(b"0" * 2**21)

    with pytest.raises(OSError, match="No space left"):
        make()
    assert list(disk.folder.iterdir()) == []


def test_room_is_asked_for_before_it_is_used(disk: SmallDisk) -> None:
    require_space(disk.folder, 2**19, "the model")
    for num_bytes in (2**20, 2**40):
        with pytest.raises(OSError, match=r"the model takes [\d,]+ MiB, 1 MiB are free") as raised:
            require_space(disk.folder, num_bytes, "the model")
        assert raised.value.errno == errno.ENOSPC
        assert str(disk.folder) in str(raised.value)
