"""The same rows come out of every format, in order, with their places, in little memory."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rundir.errors import UserError
from train.chat.bad_row import BadRowError
from train.data.formats import batch_format, file_lines, text_format
from train.data.formats.file_lines import TOO_LONG
from train.data.formats.json_rows import elements
from train.data.formats.known import read_blocks
from train.data.formats.source import Source
from train.data.rows import parsed
from train.data.sources import find_sources

ROWS = [
    {"prompt": f"größe {i} \N{ROCKET}\n", "response": '"b", ' * (i % 7) + "[{1}]"}
    for i in range(100)
]
SOURCE = Source(Path("rows.json"), "json")
FORMATS = (
    "jsonl",
    "json",
    "json in an object",
    "json of objects",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "arrow stream",
)
PACKED = (
    "jsonl.gz",
    "jsonl.zst",
    "json.gz",
    "json.zst of objects",
    "csv.zst",
    "jsonl.gz in two",
    "jsonl.zst in two",
)


def write(kind: str, folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write `rows` as a file of that kind."""
    kind, _, how = kind.partition(" ")
    path, table = folder / f"rows.{kind}", pa.Table.from_pylist(rows)
    named, _, packed = kind.partition(".")
    if named == "parquet":
        pq.write_table(table, path, row_group_size=30)
    elif named == "arrow":
        new = pa.ipc.new_stream if how else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    else:
        text = folder / "plain"
        with text.open("w", encoding="utf-8", newline="") as file:
            if named in ("csv", "tsv"):
                mark = "," if named == "csv" else "\t"
                table_writer = csv.DictWriter(file, list(rows[0]), delimiter=mark)
                table_writer.writeheader()
                table_writer.writerows(rows)
            elif how == "of objects":
                file.writelines(json.dumps(row, indent=1, ensure_ascii=False) for row in rows)
            elif named == "json":
                whole = {"version": [1, {"a": "{["}], "data": rows} if how else rows
                json.dump(whole, file, indent=1, ensure_ascii=False)
            else:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        data = text.read_bytes()
        text.unlink()
        pieces = [data[: len(data) // 2], data[len(data) // 2 :]] if how else [data]
        path.write_bytes(b"".join(packed_as(packed, piece) for piece in pieces))
    return path


def packed_as(packed: str, data: bytes) -> bytes:
    if packed == "gz":
        return gzip.compress(data)
    if packed == "zst":
        found: bytes = pa.Codec("zstd").compress(data, asbytes=True)
        return found
    return data


def read(path: Path) -> list[tuple[int, Any]]:
    """Return (place, row) of all rows."""
    return [
        (number, parsed(raw))
        for source in find_sources(path)
        for block in read_blocks(source)
        for number, raw in block
    ]


@pytest.mark.parametrize("kind", [*FORMATS, *PACKED])
@pytest.mark.parametrize("block_rows", [8192, 7])
def test_every_format_gives_the_same_rows(
    tmp_path: Path, kind: str, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (text_format, batch_format):
        monkeypatch.setattr(module, "BLOCK_ROWS", block_rows)
    found = read(write(kind, tmp_path))
    assert [row for _, row in found] == ROWS
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))


def test_places_are_those_that_an_editor_shows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"a": 1}\n \n\n{"a": 2}\n')
    (tmp_path / "b.json").write_text('\n[\n  {"a":\n 1},\n{"a": 2}, {"a": 3}\n\n,\n{"a": 4}]')
    (tmp_path / "e.json").write_text(
        '\n{\n"v": [\n2], "data":\n[\n {"a":\n 1},\n{"a": 2}], "n": 2}'
    )
    (tmp_path / "f.json").write_text('{\n"a": 1}{"a": 2}\n\n {\n"a": 3}\n')
    (tmp_path / "c.csv").write_text('a\n"1\n2"\n\n3\n')
    (tmp_path / "d.txt").write_text("\none\n  \ntwo\r\n")
    assert [number for number, _ in read(tmp_path / "a.jsonl")] == [2, 5]
    assert [number for number, _ in read(tmp_path / "b.json")] == [3, 5, 5, 8]
    assert [number for number, _ in read(tmp_path / "e.json")] == [6, 8]
    assert [number for number, _ in read(tmp_path / "f.json")] == [1, 2, 4]
    assert read(tmp_path / "c.csv") == [(2, {"a": "1\n2"}), (5, {"a": "3"})]
    assert read(tmp_path / "d.txt") == [(2, "one"), (4, "two")]


def test_a_folder_is_its_files_by_name_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("z.jsonl", "b/a.jsonl", ".git/x.jsonl", "README.md", "b/c.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert [row["from"] for _, row in read(tmp_path)] == ["b/a.jsonl", "b/c.jsonl", "z.jsonl"]


def save_as_datasets_does(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the layout of Dataset.save_to_disk, as of datasets 5.2."""
    folder.mkdir(parents=True)
    names = []
    for i, some in enumerate((rows[:60], rows[60:])):
        names.append(f"data-{i:05d}-of-00002.arrow")
        table = pa.Table.from_pylist(some)
        with (
            pa.OSFile(str(folder / names[-1]), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_dataset_is_read_in_its_order_and_of_several_splits_the_training_one(
    tmp_path: Path,
) -> None:
    save_as_datasets_does(tmp_path / "one", ROWS)
    assert [row for _, row in read(tmp_path / "one")] == ROWS
    save_as_datasets_does(tmp_path / "many" / "train", ROWS)
    save_as_datasets_does(tmp_path / "many" / "test", ROWS[:3])
    (tmp_path / "many" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [row for _, row in read(tmp_path / "many")] == ROWS
    assert [row for _, row in read(tmp_path / "many" / "test")] == ROWS[:3]
    (tmp_path / "many" / "train" / "state.json").unlink()
    with pytest.raises(UserError, match="no split `train`; there are: test"):
        find_sources(tmp_path / "many")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'[{"a": 1}, {"a": }]', "line 1"),
        ("a.json", b'[{"a": 1}\n\n{"a": 2}]', "not valid JSON at line 3"),
        ("a.json", b'[{"a": 1},\n', "not valid JSON at line 2"),
        ("a.json", b'[{"a": "half', "not valid JSON at line 1"),
        ("a.json", b'[{"a": 1}]\n\n[{"a": 2}]', "not valid JSON at line 3: '\\[' after the end"),
        ("a.json", b'{"data": [\n{"a": 1}]', "not valid JSON at line 2"),
        ("a.json", b'{\n"a": 1},\n{\n"a": 2}', "not valid JSON at line 2"),
        ("a.json", b'{\n"a": 1\n}\n{"a" 2}', "not valid JSON at line 4"),
        ("a.parquet", b"PAR1 and no more", "is damaged"),
        ("a.arrow", b"ARROW1 and no more", "is damaged"),
        ("a.parquet", b"something else", "is no parquet file"),
        ("a.csv", b'a\n"1', "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    if name == "a.csv":
        csv.field_size_limit(3)
        (tmp_path / name).write_bytes(b"a\n" + b"x" * (file_lines.LONGEST_ROW_BYTES + 9))
    with pytest.raises(UserError, match=says) as raised:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def test_rows_of_csv_that_are_too_short_or_too_long_are_bad_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1;2\n3\n4;5;6\n")
    (source,) = find_sources(tmp_path / "a.csv")
    (block,) = read_blocks(source)
    (_, good), (_, short), (_, long) = block
    assert good == {"a": "1", "b": "2"}
    assert isinstance(short, BadRowError)
    assert isinstance(long, BadRowError)
    assert (short.what, long.what) == (
        "has 1 fields, the first row has 2",
        "has 3 fields, the first row has 2",
    )


def test_a_long_first_line_is_a_row_if_another_follows_and_all_of_them_if_none_does(
    tmp_path: Path,
) -> None:
    """What it begins with may look like an array of rows."""
    passages = [{"of": i, "said": "x" * 100} for i in range(2000)]
    row = {"passages": passages, "prompt": "p", "response": "r"}
    line, file = json.dumps(row) + "\n", tmp_path / "a.jsonl"
    file.write_text("\n" + line + line)
    assert read(file) == [(2, row), (3, row)]
    file.write_text(line + json.dumps(row, indent=1))  # the last one is no line
    assert [source.format for source in find_sources(file)] == ["jsonl"]
    file.write_text(json.dumps({"passages": passages}))
    assert [found for _, found in read(file)] == passages
    file.with_suffix(".gz").write_bytes(gzip.compress(line.encode() * 2))
    assert read(file.with_suffix(".gz")) == [(1, row), (2, row)]


def test_rows_in_an_object_take_no_more_memory_than_in_lines() -> None:
    class Counted(io.BytesIO):
        """A file that knows how much of it was asked for."""

        def read(self, size: int | None = -1) -> bytes:
            assert 0 < (size or 0) <= 1 << 18
            return super().read(size)

    rows = [{"prompt": str(i), "response": "r" * 1000} for i in range(3000)]
    for text in (json.dumps({"data": rows}), "\n".join(json.dumps(row, indent=1) for row in rows)):
        file = Counted(text.encode())
        found = elements(file, SOURCE)
        assert [next(found)[1], next(found)[1]] == rows[:2]
        assert file.tell() == 1 << 18
        assert [row for _, row, _ in found] == rows[2:]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64])
def test_an_array_is_the_same_however_it_is_cut(chunk: int) -> None:
    class Slow:
        """A file that returns its content in small pieces."""

        def __init__(self, data: bytes) -> None:
            self.data = data

        def read(self, _size: int) -> bytes:
            some, self.data = self.data[:chunk], self.data[chunk:]
            return some

    values = [{"größe": [1, "\N{ROCKET}", {"a": "]"}]}, {}, {"b": -1.5e9}, {"c": None}]
    data, *objects = (
        json.dumps(value, ensure_ascii=False, indent=1).encode() for value in (values, *values)
    )
    found = elements(Slow(data), SOURCE)
    assert [row for _, row, _ in found] == values
    for laid_out in (b'{"v": "1", "rows": ' + data + b"}", b"\n".join(objects)):
        assert [row for _, row, _ in elements(Slow(laid_out), SOURCE)] == values
    assert list(elements(Slow(b" [ ] "), SOURCE)) == []
    numbers = elements(Slow(b"[12, 345]"), SOURCE)
    assert [row for _, row, _ in numbers] == [b"12", b"345"]


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lines, "LONGEST_ROW_BYTES", 100)
    (tmp_path / "a.txt").write_text("x" * 1000 + "\nshort\n" + "y" * 1000)
    (source,) = find_sources(tmp_path / "a.txt")
    (block,) = read_blocks(source)
    assert block.rows == [TOO_LONG, "short", TOO_LONG]
    (tmp_path / "a.jsonl").write_text("x" * 1000 + "\n")
    (source,) = find_sources(tmp_path / "a.jsonl")
    (block,) = read_blocks(source)
    assert [len(row) for row in block.rows] == [101]
