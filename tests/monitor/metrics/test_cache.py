"""The index may be lost, damaged or used by others at any time: answers are right all the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.metrics import store
from monitor.metrics.index import Index
from monitor.metrics.places import Places
from monitor.metrics.query import Question
from tests.conftest import ROOT
from tests.monitor.metrics.event_files import WrittenRun

_ALL = Question(series=("train.loss",), points=100_000)
_NUM = 6000


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    written = WrittenRun(tmp_path / "runs")
    written.many(1, _NUM)
    return written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    index = Index(folder, in_background=False)
    yield index
    index.close()


def ask(index: Index, written: WrittenRun, question: Question = _ALL) -> dict[str, Any]:
    """Return an answer as soon as everything is indexed."""
    while not (told := index.metrics(written.run, question))["indexed"]["done"]:
        pass
    return told


def assert_right(told: dict[str, Any], num: int = _NUM) -> None:
    curve = told["series"]["train.loss"]
    assert curve["steps"] == list(range(1, num + 1))
    assert curve["last"] == [float(step) for step in range(1, num + 1)]


def file_of(folder: Path) -> Path:
    (found,) = folder.glob("*.sqlite")
    return found


def test_a_second_server_finds_what_the_first_has_indexed(
    index: Index, folder: Path, written: WrittenRun
) -> None:
    told = ask(index, written)
    index.close()
    other = Index(folder, in_background=False)
    again = other.metrics(written.run, _ALL)
    assert again["indexed"]["done"]
    assert again == told
    other.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_an_index_that_was_deleted_is_made_anew(
    index: Index, folder: Path, written: WrittenRun, is_open: bool
) -> None:
    before = ask(index, written)
    if not is_open:
        index.close()
    shutil.rmtree(folder)
    told = ask(index, written, Question(**_asked() | {"after": before["cursor"]}))
    assert told["reset"]
    assert_right(told)
    assert file_of(folder)


def _asked() -> dict[str, Any]:
    return {"series": _ALL.series, "points": _ALL.points}


@pytest.mark.parametrize("seed", range(12))
def test_an_index_that_is_damaged_anywhere_is_made_anew(
    folder: Path, written: WrittenRun, seed: int
) -> None:
    first = Index(folder, in_background=False)
    ask(first, written)
    first.close()
    path, chance = file_of(folder), random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(1 + 40 * (seed % 3)):
        at = chance.randrange(len(data))
        data[at : at + 64] = chance.randbytes(64)
    path.write_bytes(data[: len(data) if seed % 2 else chance.randrange(len(data))])
    second = Index(folder, in_background=False)
    assert_right(ask(second, written))
    second.close()


@pytest.mark.parametrize("data", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_something_else_of_that_name_is_replaced(
    folder: Path, written: WrittenRun, data: bytes
) -> None:
    path = Places(folder).path(written.run, 0)
    assert path is not None
    folder.mkdir()
    path.write_bytes(data)
    index = Index(folder, in_background=False)
    assert_right(ask(index, written))
    index.close()


def test_tables_that_are_not_ours_are_replaced(folder: Path, written: WrittenRun) -> None:
    path = Places(folder).path(written.run, 0)
    assert path is not None
    folder.mkdir()
    database = sqlite3.connect(path)
    database.executescript("create table chunk(a); pragma user_version = 1;")
    database.close()
    index = Index(folder, in_background=False)
    assert_right(ask(index, written))
    index.close()


def test_an_index_of_another_version_is_left_alone_while_in_use_and_removed_later(
    folder: Path, written: WrittenRun
) -> None:
    folder.mkdir()
    older = folder / "20250101-000000-tiny-1111-0123456789ab.v0.sqlite"
    older.write_bytes(b"older")
    index = Index(folder, in_background=False)
    assert_right(ask(index, written))
    assert not older.exists()
    index.close()


def test_a_run_made_anew_with_the_same_name_has_only_its_own_metrics(
    index: Index, written: WrittenRun, tmp_path: Path
) -> None:
    before = ask(index, written)
    shutil.rmtree(written.run.path)
    anew = WrittenRun(tmp_path / "runs")
    for step in range(1, 4):
        anew.train(step, loss=float(step))
    told = ask(index, anew, Question(**_asked() | {"after": before["cursor"]}))
    assert told["reset"]
    assert_right(told, 3)


def test_a_file_of_events_that_was_replaced_or_cut_is_read_again(
    index: Index, written: WrittenRun
) -> None:
    ask(index, written)
    path = written.run.event_file("rank0")
    data = path.read_bytes()
    os.truncate(path, data.index(b"\n", 10_000) + 1)
    num = path.read_bytes().count(b"\n")
    assert_right(ask(index, written), num)
    path.unlink()
    written.many(1, 5)
    assert_right(ask(index, written), 5)


def test_the_index_of_a_run_that_is_gone_is_removed(
    folder: Path, written: WrittenRun, tmp_path: Path
) -> None:
    first = Index(folder, in_background=False)
    ask(first, written)
    first.close()
    other = WrittenRun(tmp_path / "runs", "20260102-000000-other-1111")
    shutil.rmtree(written.run.path)
    second = Index(folder, in_background=False)
    ask(second, other)
    assert file_of(folder).name.startswith(other.run.run_id)
    second.close()


def test_two_servers_at_once_on_one_index_and_a_run_that_goes_on(
    folder: Path, written: WrittenRun
) -> None:
    indexes = [Index(folder, in_background=False) for _ in range(3)]
    found: list[BaseException | None] = []
    is_written = threading.Event()

    def look(index: Index) -> None:
        try:
            while not is_written.is_set():
                steps = ask(index, written)["series"]["train.loss"]["steps"]
                assert steps == list(range(1, len(steps) + 1))
            assert_right(ask(index, written), _NUM + 400)
            found.append(None)
        except BaseException as error:  # noqa: BLE001 - told of by the test
            found.append(error)

    threads = [threading.Thread(target=look, args=(index,)) for index in indexes]
    for thread in threads:
        thread.start()
    for begin in range(_NUM + 1, _NUM + 401, 10):
        written.many(begin, begin + 9)
        time.sleep(0.01)
    is_written.set()
    for thread in threads:
        thread.join()
    for index in indexes:
        index.close()
    assert found == [None] * 3


def test_a_full_disk_is_worked_around_in_memory(
    small_disk: Path, written: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = small_disk / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    written.many(_NUM + 1, 30_000)  # more than the disk takes
    index = Index(small_disk / "index", in_background=False)
    told = ask(index, written)
    assert_right(told, 30_000)
    assert "full" in told["indexed"]["problem"]
    index.close()


def test_where_nothing_can_be_written_another_folder_does(
    tmp_path: Path, written: WrittenRun
) -> None:
    (tmp_path / "file").write_text("")
    index = Index(tmp_path / "file" / "index", in_background=False)
    told = ask(index, written)
    assert_right(told)
    assert told["indexed"]["problem"]
    index.close()


def test_more_than_may_be_in_memory_is_said(
    tmp_path: Path, written: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.setattr(store, "MOST_BYTES_IN_MEMORY", 200_000)
    (tmp_path / "file").write_text("")
    index = Index(tmp_path / "file", in_background=False)
    for _ in range(5):
        told = index.metrics(written.run, _ALL)
    assert not told["indexed"]["done"]
    assert told["indexed"]["problem"]
    steps = told["series"]["train.loss"]["steps"]
    assert steps == list(range(1, len(steps) + 1))
    assert steps
    index.close()


def start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "monitor.metrics"],
        stdin=subprocess.PIPE,
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_killed_while_it_indexes_it_goes_on_where_it_was(folder: Path, written: WrittenRun) -> None:
    written.many(_NUM + 1, 40_000)
    path = Places(folder).path(written.run, 0)
    seen = [0]
    while True:
        worker = start_worker()
        assert worker.stdin is not None
        line = f'{{"run": "{written.run.path}", "index": "{path}"}}\n'
        worker.stdin.write(line.encode())
        worker.stdin.flush()
        index = Index(folder, in_background=False)
        while True:
            # A killed process must not have been waited for: this one only looks.
            told = index.metrics(written.run, Question(series=("train.loss",), points=50_000))
            num = told["indexed"]["bytes"]
            if told["indexed"]["done"] or num > seen[-1]:
                break
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdin.close()
        index.close()
        assert num >= seen[-1]
        seen.append(num)
        steps = told["series"]["train.loss"]["steps"]
        assert steps == list(range(1, len(steps) + 1))
        if told["indexed"]["done"]:
            break
    assert_right(told, 40_000)


@pytest.mark.runs
def test_what_takes_long_is_done_beside_and_seen_as_it_goes_on(
    folder: Path, written: WrittenRun
) -> None:
    written.many(_NUM + 1, 60_000)
    index = Index(folder)
    told = index.metrics(written.run, _ALL)
    first = told["indexed"]
    assert not first["done"]
    assert 0 < first["bytes"] < first["of_bytes"]
    assert told["series"]["train.loss"]["steps"][:3] == [1, 2, 3]
    while not told["indexed"]["done"]:
        time.sleep(0.05)
        told = index.metrics(written.run, _ALL)
    assert_right(told, 60_000)
    index.close()


def test_the_process_beside_has_the_least_priority_and_ends_with_the_server() -> None:
    worker = start_worker()
    assert worker.stdin is not None
    while os.getpriority(os.PRIO_PROCESS, worker.pid) != 19:
        assert worker.poll() is None
        time.sleep(0.01)
    worker.stdin.close()
    assert worker.wait() == 0
