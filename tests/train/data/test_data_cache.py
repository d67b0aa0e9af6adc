"""The surroundings of data preparation: progress, remembered digests, a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rundir.events import EventTail, EventWriter
from tests.running import python
from tests.train.data.test_prepare_data import cache, file, model, saved_tokenizer
from train.data.path_samples import prepare_path
from train.data.reading_progress import ReadingProgress, reported_in
from train.data.samples import Recipe
from train.files import content
from train.files.content import digest_of

__all__ = ["cache", "file", "model", "saved_tokenizer"]  # their fixtures


def test_progress_tells_rows_share_speed_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("train.data.reading_progress.time.monotonic", lambda: now)
    progress = ReadingProgress(8_000_000)
    progress.at(1_000_000, 10)
    assert capsys.readouterr().err == ""  # only now and then
    now = 120.0
    progress.at(2_000_000, 12_345)
    said = capsys.readouterr().err
    assert said == "data: 12,345 rows, 25% of 8.0 MB, 0.1 MB/s, 1:00 left\n"


def test_progress_is_told_in_events_with_the_memory(tmp_path: Path) -> None:
    with reported_in(EventWriter(tmp_path / "prepare.jsonl")):
        progress = ReadingProgress(1000)
        progress.at(10, 3)
        progress.at(1000, 250)
        progress.end()
    ReadingProgress(1000).end()  # of nobody's interest
    first, last = EventTail(tmp_path / "prepare.jsonl").new_events()
    assert (first["name"], first["num_rows"], first["done_bytes"]) == ("prepare.progress", 3, 10)
    assert (last["num_rows"], last["done_bytes"], last["total_bytes"]) == (250, 1000, 1000)
    assert 1e6 < last["pss_bytes"] < 1e12


def test_a_large_file_is_read_once_and_again_when_it_has_changed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    whole = content._read

    def read(path: Path) -> bytes:
        reads.append(path)
        return whole(path)

    monkeypatch.setattr(content, "_read", read)
    monkeypatch.setattr(content, "_REMEMBERED_BYTES", 1)
    file.write_text("a")
    os.utime(file, (1e9, 1e9))
    monkeypatch.setattr(content, "_SETTLED_S", -1.0)
    first = digest_of(file)
    assert digest_of(file) == first
    assert len(reads) == 1
    file.write_text("b")  # of the same length
    os.utime(file, (1e9, 1e9))  # and of the same age; its change time cannot be set
    assert digest_of(file) != first
    assert len(reads) == 2


def test_a_file_that_was_written_just_now_is_not_trusted(file: Path) -> None:
    file.write_bytes(b"a" * (9 << 20))
    first = digest_of(file)
    with file.open("r+b") as changed:
        changed.write(b"b")
    assert digest_of(file) != first


def test_a_full_disk_is_said_and_leaves_nothing_behind(
    file: Path, model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(small_disk))
    rows = [{"text": f"{i} " * 90} for i in range(3000)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(OSError, match="No space") as raised:
        prepare_path(file, model, Recipe(max_seq_length=1000))
    assert raised.value.errno == errno.ENOSPC
    assert not [path for path in small_disk.glob("data/*") if path.is_dir()]
    assert not [path for path in small_disk.glob("data/.*") if path.is_dir()]


PEAK = """
import resource, sys
from pathlib import Path
from train.data import cache as data_cache
from train.data.path_samples import prepare_path
from train.data.samples import Recipe
data_cache.num_processes = lambda: 2
prepare_path(Path(sys.argv[1]), Path(sys.argv[2]), Recipe(max_seq_length=1000))
whom = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
most = max(resource.getrusage(who).ru_maxrss for who in whom)
print(most * 1024)
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_data(
    tmp_path: Path, model: Path, environ: dict[str, str]
) -> None:
    peaks = []
    for num_rows in (30_000, 300_000):
        file = tmp_path / f"{num_rows}.jsonl"
        with file.open("w") as out:
            out.writelines(json.dumps({"text": f"{i} " * 30}) + "\n" for i in range(num_rows))
        env = environ | {"AIRLOCK_CACHE_DIR": str(tmp_path / "c")}
        peaks.append(int(python(PEAK, str(file), str(model), env=env).split()[-1]))
    assert peaks[1] < peaks[0] + 60e6  # for 60 MB more text
