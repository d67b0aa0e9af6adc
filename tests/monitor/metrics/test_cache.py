"""The index may be lost, damaged or used by others at any time: answers are right all the same."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.metrics import places
from monitor.metrics.index import Index
from monitor.metrics.metrics_query import MetricsQuestion
from monitor.metrics.places import Places
from rundir.files.lock import lock
from tests.conftest import ROOT
from tests.monitor.metrics.event_files import WrittenRun

_ALL = MetricsQuestion(series=("train.loss",), points=100_000)
_NUM = 2500


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


def ask(index: Index, written: WrittenRun, question: MetricsQuestion = _ALL) -> dict[str, Any]:
    """Return an answer as soon as everything is indexed."""
    while not (told := index.metrics(written.run, question))["indexed"]["done"]:
        pass
    return told


def assert_right(told: dict[str, Any], num: int = _NUM) -> None:
    curve = told["series"]["train.loss"]
    assert curve["steps"] == list(range(1, num + 1))
    assert curve["last"] == [float(step) for step in range(1, num + 1)]


def only_index(folder: Path) -> Path:
    (index,) = folder.iterdir()
    return index


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


def test_an_index_that_was_deleted_is_made_anew(
    index: Index, folder: Path, written: WrittenRun
) -> None:
    before = ask(index, written)
    shutil.rmtree(folder)
    told = ask(index, written, replace(_ALL, after=before["cursor"]))
    assert told["reset"]
    assert_right(told)
    assert only_index(folder)


def test_an_index_that_is_damaged_anywhere_is_made_anew(
    index: Index, folder: Path, written: WrittenRun
) -> None:
    chance = random.Random(0)
    for turn in range(12):
        ask(index, written)
        path = chance.choice(sorted(only_index(folder).iterdir()))
        data = bytearray(path.read_bytes())
        for _ in range(1 + 40 * (turn % 3) if data else 0):
            at = chance.randrange(len(data))
            data[at : at + 64] = chance.randbytes(64)
        path.write_bytes(data[: len(data) if turn % 2 else chance.randrange(len(data) + 1)])
        assert_right(ask(index, written))


@pytest.mark.parametrize("name", ["state", "1-0"])
def test_a_file_that_is_gone_or_something_else_is_replaced(
    index: Index, folder: Path, written: WrittenRun, name: str
) -> None:
    for data in (None, b"", b"no state", b"00000000\n{}"):
        ask(index, written)
        path = only_index(folder) / name
        path.unlink() if data is None else path.write_bytes(data)
        assert_right(ask(index, written))


def test_indexes_of_other_versions_are_removed(
    index: Index, folder: Path, written: WrittenRun
) -> None:
    folder.mkdir()
    (folder / "20250101-000000-tiny-1111-0123456789ab.v1.sqlite-wal").write_bytes(b"older")
    (folder / "20250101-000000-tiny-1111-0123456789ab.v0").mkdir()
    assert_right(ask(index, written))
    assert only_index(folder).name.startswith(written.run.run_id)


def test_a_run_made_anew_with_the_same_name_has_only_its_own_metrics(
    index: Index, written: WrittenRun, tmp_path: Path
) -> None:
    before = ask(index, written)
    shutil.rmtree(written.run.path)
    anew = WrittenRun(tmp_path / "runs")
    for step in range(1, 4):
        anew.train(step, loss=float(step))
    told = ask(index, anew, replace(_ALL, after=before["cursor"]))
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
    assert only_index(folder).name.startswith(other.run.run_id)
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
    written.many(_NUM + 1, 14_000)  # more than the disk takes
    index = Index(small_disk / "index", in_background=False)
    told = ask(index, written)
    assert_right(told, 14_000)
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
    monkeypatch.setattr(places, "_MOST_BYTES_IN_MEMORY", 200_000)
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


def start_indexing(written: WrittenRun, folder: Path) -> subprocess.Popen[bytes]:
    index = Places(folder).store(written.run, 0).folder
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "monitor.metrics", str(written.run.path), str(index)],
        stdin=subprocess.PIPE,
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_killed_while_it_indexes_it_goes_on_where_it_was(folder: Path, written: WrittenRun) -> None:
    written.many(_NUM + 1, 14_000)
    index = Index(folder, in_background=False)
    seen = [0]
    is_done = False
    while not is_done:
        with start_indexing(written, folder) as process:
            while process.poll() is None:
                # A killed process must not have been waited for: this one only looks.
                told = index.metrics(
                    written.run, MetricsQuestion(series=("train.loss",), points=50_000)
                )
                if told["indexed"]["done"] or told["indexed"]["bytes"] > seen[-1]:
                    break
            process.kill()
        is_done = told["indexed"]["done"]
        assert told["indexed"]["bytes"] >= seen[-1]
        seen.append(told["indexed"]["bytes"])
        steps = told["series"]["train.loss"]["steps"]
        assert steps == list(range(1, len(steps) + 1))
    assert_right(told, 14_000)


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


def test_the_process_beside_has_the_least_priority_and_ends_with_the_server(
    index: Index, folder: Path, written: WrittenRun
) -> None:
    ask(index, written)
    written.train(_NUM + 1, loss=1.0)
    with (only_index(folder) / "lock").open("ab") as file:
        assert lock(file.fileno())  # so that it cannot be done
        with start_indexing(written, folder) as process:
            while os.getpriority(os.PRIO_PROCESS, process.pid) != 19:
                assert process.poll() is None
                time.sleep(0.01)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0
