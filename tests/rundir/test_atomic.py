"""Files and folders that are complete or absent, whoever reads, writes or dies meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rundir.atomic import new_folder, write_text
from tests.running import Start

# Replaces a file by one long text and another in turn until it is killed.
REPLACER = """
import sys
from pathlib import Path
from rundir.atomic import write_text
while True:
    for letter in "ab":
        write_text(Path(sys.argv[1]), letter * 1_000_000, durable=False)
        print(letter, flush=True) if letter == "a" else None
"""

# Makes a folder of two files named after itself; continues between them when its stdin closes.
MAKER = """
import sys
from pathlib import Path
from rundir.atomic import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "one").write_text(sys.argv[2])
    print("half", flush=True)
    sys.stdin.read()
    (folder / "two").write_text(sys.argv[2])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an empty folder, so that its contents can be counted at the end."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Start]:
    """Start one of the programs above; end what a failing test leaves running."""
    with contextlib.ExitStack() as started:

        def start_program(program: str, *args: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *map(str, args)],
                env=environ,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            started.callback(end, process)
            return process

        yield start_program


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Kill the process, if it is still there, and wait for its end."""
    process.kill()
    process.communicate()


def test_a_reader_sees_the_old_file_or_the_new_one(start: Start, place: Path) -> None:
    path = place / "status.json"
    writer = start(REPLACER, path)
    assert next_line(writer) == "a"
    texts = {path.read_text(encoding="utf-8") for _ in range(200)}
    end(writer)
    assert texts == {"a" * 1_000_000, "b" * 1_000_000}


def test_a_new_file_can_be_read_by_others_and_is_left_by_a_text_that_cannot_be_written(
    place: Path,
) -> None:
    path = place / "a.json"
    no_utf_8 = b"MAX_JOBS=\xff \xc3\xa9"
    write_text(path, no_utf_8.decode(errors="surrogateescape"))
    assert path.read_bytes() == no_utf_8
    write_text(path, "größe\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud83d")
    assert path.read_bytes() == "größe\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(place) == ["a.json"]


def test_a_folder_has_its_name_only_once_it_is_whole(place: Path) -> None:
    path = place / "deep" / "data"
    with new_folder(path) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("content", encoding="utf-8")
        assert not path.exists()
        assert folder.parent == path.parent  # otherwise the last rename would be a copy
    assert (path / "sub" / "file").read_text(encoding="utf-8") == "content"
    assert path.stat().st_mode & 0o777 == 0o755
    assert names(path.parent) == ["data"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_of_a_folder(place: Path, error: type[BaseException]) -> None:
    def make() -> None:
        with new_folder(place / "data") as folder:
            (folder / "file").touch()
            raise error

    with pytest.raises(error):
        make()
    assert names(place) == []


def test_a_file_in_the_folders_place_is_an_error_and_stays(place: Path) -> None:
    path = place / "data"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(OSError, match="data"), new_folder(path) as folder:
        (folder / "file").touch()
    assert path.read_text(encoding="utf-8") == "mine"
    assert names(place) == ["data"]


def test_of_two_processes_making_one_folder_the_first_wins(start: Start, place: Path) -> None:
    path = place / "data"
    makers = [start(MAKER, path, name) for name in ("first", "second")]
    assert [next_line(maker) for maker in makers] == ["half", "half"]
    for maker in makers:
        maker.communicate()
        assert maker.returncode == 0
        texts = [(path / name).read_text(encoding="utf-8") for name in ("one", "two")]
        assert texts == ["first", "first"]
    assert names(place) == ["data"]


def test_a_maker_killed_half_way_leaves_no_folder_of_that_name(start: Start, place: Path) -> None:
    path = place / "data"
    maker = start(MAKER, path, "killed")
    assert next_line(maker) == "half"
    end(maker)
    assert not path.exists()
    with new_folder(path) as folder:  # and does not get in the way of the next
        (folder / "one").touch()
    assert names(path) == ["one"]
