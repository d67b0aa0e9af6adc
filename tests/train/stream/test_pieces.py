"""The rows of pieces are those of the files, wherever reading begins; changes are reported."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rundir.errors import UserError
from tests.train.data.test_readers import FORMATS, PACKED, ROWS, write
from train.data.columns import Columns
from train.data.formats import file_lines
from train.data.formats.file_lines import TOO_LONG
from train.data.formats.format import Numbered
from train.data.formats.known import read_blocks
from train.data.sources import find_sources
from train.stream.piece_reader import PieceReader
from train.stream.pieces import PIECE, Pieces, StreamFile, scan, scan_all

SMALL = 300  # bytes of a piece: a few rows


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_at(path: Path) -> list[StreamFile]:
    return [StreamFile.of(source) for source in find_sources(path)]


def all_rows(path: Path) -> list[Numbered]:
    """Return for each file what data preparation would read from it."""
    return [
        [pair for block in read_blocks(source) for pair in block] for source in find_sources(path)
    ]


def picked(
    files: list[StreamFile],
    table: np.ndarray,
    wanted: list[np.ndarray],
    said: list[str] | None = None,
) -> list[Numbered]:
    """Return the wanted rows of each piece."""
    found: list[Numbered] = [[] for _ in table]
    with closing(PieceReader(files, ([] if said is None else said).append)) as reader:
        for at, rows in reader.rows(table, wanted):
            found[at] = rows
    return found


def every(table: np.ndarray) -> list[np.ndarray]:
    return [np.arange(piece["num_rows"]) for piece in table]


@pytest.mark.parametrize("kind", [*FORMATS, *PACKED])
def test_pieces_have_all_rows_and_their_places_whatever_is_read_first(
    tmp_path: Path, kind: str
) -> None:
    files = files_at(write(kind, tmp_path))
    (rows,) = all_rows(files[0].source.path)
    table = scan_all(files, SMALL, 0)
    assert len(table) > 4
    assert [row for piece in picked(files, table, every(table)) for row in piece] == rows
    starts = np.cumsum(table["num_rows"]) - table["num_rows"]
    draw = np.random.default_rng(0)
    for _ in range(5):
        order = draw.permutation(len(table))
        wanted = [np.flatnonzero(draw.random(n) < 0.3) for n in table["num_rows"][order]]
        found = picked(files, table[order], wanted)
        assert found == [
            [rows[starts[piece] + i] for i in some]
            for piece, some in zip(order, wanted, strict=True)
        ]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "arrow stream"])
def test_a_reader_goes_on_with_any_later_pieces(tmp_path: Path, kind: str) -> None:
    files = files_at(write(kind, tmp_path))
    (rows,), table = all_rows(files[0].source.path), scan_all(files, SMALL, 0)
    reader, starts = PieceReader(files, print), np.cumsum(table["num_rows"]) - table["num_rows"]
    for at in (0, 1, 4, len(table) - 1, 2):
        (found,) = reader.rows(table[at : at + 1], [np.array([0])])
        assert found == (0, [rows[starts[at]]])
    reader.close()


def test_blank_lines_marks_quoted_line_ends_and_endless_lines_are_as_in_a_whole_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lines, "LONGEST_ROW_BYTES", 100)
    (tmp_path / "a.jsonl").write_text('\ufeff\n{"a": 1}\n \n\n{"a": 2}\n' + '{"b": 1}\n\n' * 5)
    (tmp_path / "c.csv").write_text('\ufeffa,b\n"1\n2",1\n\n3,4\n5\n' + '"\n\n",2\n' * 5)
    (tmp_path / "d.txt").write_text("\none\n" + "x" * 1000 + "\n  \ntwo\r\n" + "y" * 1000)
    files, rows = files_at(tmp_path), all_rows(tmp_path)
    table = scan_all(files, 1, 0)
    assert [int(n) for n in table["num_rows"]] == [1] * sum(map(len, rows))
    found = picked(files, table, every(table))
    texts = [(number, str(row)) for piece in found for number, row in piece]
    assert texts == [(number, str(row)) for some in rows for number, row in some]
    assert (3, TOO_LONG) in [pair for piece in found for pair in piece]


@pytest.mark.parametrize("small_bytes", [0, 1 << 30])
def test_any_number_of_files_is_one_table_and_a_limit_ends_it(
    tmp_path: Path, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "train.stream.pieces._SMALL_BYTES", small_bytes
    )  # read by other processes, or not
    for i, kind in enumerate(("jsonl", "jsonl.gz", "parquet", "csv")):
        (tmp_path / f"{i}").mkdir()
        write(kind, tmp_path / f"{i}")
    files = files_at(tmp_path)
    rows = [row for some in all_rows(tmp_path) for row in some]
    for limit in (0, 1, 150, 200, 399, 400, 1000):
        table = scan_all(files, SMALL, limit)
        found = [row for piece in picked(files, table, every(table)) for row in piece]
        assert found == rows[: limit or len(rows)]
    whole = scan_all(files, SMALL, 0)
    assert sorted(set(whole["file"].tolist())) == [0, 1, 2, 3]
    one_by_one = np.flatnonzero(whole["file"] == 1)
    assert len(set(whole["group"][one_by_one].tolist())) == 1
    assert np.array_equal(np.unique(whole["group"]), np.arange(whole["group"][-1] + 1))


def test_what_was_saved_is_loaded_and_a_fingerprint_tells_other_rows(tmp_path: Path) -> None:
    files = files_at(write("csv", tmp_path))
    for size in (SMALL, 2 * SMALL):
        pieces = Pieces(
            files=files,
            table=scan_all(files, size, 0),
            piece_bytes=size,
            columns=Columns("pair", ("prompt", "response"), "input"),
        )
        pieces.save(tmp_path / f"saved{size}")
        loaded = Pieces.load(tmp_path / f"saved{size}")
        assert (loaded.files, loaded.columns, loaded.piece_bytes) == (files, pieces.columns, size)
        assert np.array_equal(loaded.table, pieces.table)
        assert loaded.num_rows == len(ROWS)
        assert loaded.fingerprint == pieces.fingerprint
    assert Pieces.load(tmp_path / f"saved{SMALL}").fingerprint != pieces.fingerprint


def large(path: Path) -> None:
    path.write_text('{"text": "0123456789"}\n' * 400_000)
    os.utime(path, (1e9, 1e9))


def test_a_large_file_is_counted_once_until_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.files.content._SETTLED_S", -1.0)  # its change time is now
    path = tmp_path / "a.jsonl"
    large(path)
    first = scan_all(files_at(path), 1 << 18, 0)
    (note,) = (cache / "pieces").iterdir()
    noted = note.stat().st_mtime_ns
    assert np.array_equal(scan_all(files_at(path), 1 << 18, 0), first)
    assert note.stat().st_mtime_ns == noted
    with path.open("a") as file:
        file.write('{"text": "more"}\n')
    assert scan_all(files_at(path), 1 << 18, 0)["num_rows"].sum() == 400_001
    note.write_bytes(b"torn")
    assert scan_all(files_at(path), 1 << 18, 0)["num_rows"].sum() == 400_001


def test_a_file_that_was_just_written_is_counted_anew(tmp_path: Path, cache: Path) -> None:
    large(tmp_path / "a.jsonl")
    scan_all(files_at(tmp_path / "a.jsonl"), 1 << 18, 0)
    assert not (cache / "pieces").exists()


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_compressed_file_cut_short_is_named_by_whichever_process_counts_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.stream.pieces._SMALL_BYTES", 0)  # so that others read the files
    path = write(kind, tmp_path, [{"text": str(i) * 50} for i in range(20_000)])
    path.write_bytes(path.read_bytes()[:-20])
    (source,) = find_sources(path)
    with pytest.raises(UserError, match=rf"{path} is damaged"):
        scan(source, SMALL)
    (tmp_path / "whole.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=rf"{path} is damaged.*\n.*fetch it again"):
        scan_all(files_at(tmp_path), SMALL, 0)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "jsonl.gz", "parquet", "arrow", "json"])
def test_a_file_that_shrinks_or_changes_or_goes_is_said(tmp_path: Path, kind: str) -> None:
    path = write(kind, tmp_path)
    files = files_at(path)
    table = scan_all(files, SMALL, 0)
    data = path.read_bytes()

    def says(what: str) -> None:
        with pytest.raises(UserError, match=what) as raised:
            picked(files, table, every(table))
        assert str(path) in str(raised.value)

    path.write_bytes(data[:-10])
    says(f"has {len(data) - 10:,} bytes, it had {len(data):,}")
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    says("was written anew")
    other = path.with_name("other")
    other.write_bytes(data + b"\n")
    other.replace(path)
    says("was written anew")
    path.unlink()
    says("can no longer be read")


def test_a_file_that_only_grows_is_said_once_and_read_as_it_was(tmp_path: Path) -> None:
    path = write("jsonl", tmp_path)
    files, (rows,) = files_at(path), all_rows(path)
    table = scan_all(files, SMALL, 0)
    with path.open("a") as file:
        file.write('{"more": 1}\n')
    said: list[str] = []
    found = picked(files, table, every(table), said)
    assert [row for piece in found for row in piece] == rows
    assert said == [f"{path} has grown by 12 bytes: they are not trained on"]


def test_fewer_rows_than_were_counted_are_said(tmp_path: Path) -> None:
    files = files_at(write("jsonl", tmp_path))
    table = np.array([(0, 0, 0, 1, 101)], PIECE)
    with pytest.raises(UserError, match="has fewer rows than were counted"):
        picked(files, table, [np.array([0])])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_large_group_of_a_table_is_several_pieces(tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [{"text": f"{i} " * 50} for i in range(3000)]
    table = pa.Table.from_pylist(rows)
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    files = files_at(path)
    pieces = scan_all(files, 20_000, 0)
    assert len(pieces) > 20
    assert set(pieces["group"].tolist()) == {0}
    found = picked(files, pieces, every(pieces))
    assert [row for piece in found for _, row in piece] == rows
