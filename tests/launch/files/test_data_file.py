"""Errors in the data are found before anything slow starts, from the first rows alone."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.config.resolve import resolve
from launch.files.data_file import check_data
from rundir.config import DataConfig, RunConfig
from rundir.errors import ExitCode, UserError

ROW = json.dumps({"prompt": "a", "response": "b"})
ROWS = [{"prompt": f"größe {i}", "response": f"b\n{i}"} for i in range(3)]


def check(path: Path | str, eval_path: Path | str = "", **data: Any) -> None:
    config = DataConfig(path=str(path), eval_path=str(eval_path), **data)
    check_data(RunConfig(profile="14b", data=config))


GOOD: dict[str, bytes] = {
    "plain": f"{ROW}\n{ROW}\n".encode(),
    "without a last newline": ROW.encode(),
    "with a byte order mark": f"\ufeff{ROW}\n".encode(),
    "with Windows's line ends": f"{ROW}\r\n{ROW}\r\n".encode(),
    "with empty lines": f"\n\n{ROW}\n \n".encode(),
    "with more columns": b'{"id": 1, "prompt": "a", "response": "b"}\n',
    "over many lines": b'{\n "prompt": "a",\n "response": "b"\n}\n',
    "with a first line of megabytes": ROW.replace("a", "a" * 3_000_000).encode(),
    "cut by the look within a character": (ROW + "\n").encode()
    + b'{"prompt": "'
    + "ü".encode() * 900_000
    + b'", "response": "b"}\n',
}


@pytest.mark.parametrize("case", GOOD)
def test_rows_that_can_be_trained_on_pass(tmp_path: Path, case: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(GOOD[case])
    check(file)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "only blanks": (b"\n \r\n\xef\xbb\xbf\n", "has no rows"),
    "no response": (f'{ROW}\n{{"prompt": "a"}}'.encode(), "no column `response`; its columns"),
    "the third row": (f"{ROW}\n{ROW}\n{{}}\n{ROW}".encode(), ":3: the row has no column `prompt`"),
    "a number": (b'{"prompt": true, "response": "b"}', "a boolean in `prompt`"),
    "no messages": (b'{"messages": []}', "no message of the assistant in `messages`"),
    "columns with other names": (b'{"a": "b", "c": 1}', "its columns: a, c"),
    "half an object on a line": (b'{"prompt": "a"\n{"prompt": "a"}\n', ":1: the row is not valid"),
    "plain text": (b"Once upon a time\n", ":1: the row is not valid JSON"),
    "an array as a row": (b'["a", "b"]\n', ":1: the row is a list"),
    "UTF-16": (f"{ROW}\n".encode("utf-16"), "is UTF-16 text"),
    "half a gzip file": (b"\x1f\x8b\x08\x00", "is damaged"),
    "a zip archive": (b"PK\x03\x04", "is a zip archive"),
    "Parquet by name alone": (b"PAR2", ":1: the row is not valid JSON"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("as_eval", [False, True])
def test_what_cannot_be_trained_on_is_named_with_its_place(
    tmp_path: Path, case: str, as_eval: bool
) -> None:
    content, words = BAD[case]
    good, file = tmp_path / "good.jsonl", tmp_path / "data.jsonl"
    good.write_text(ROW)
    file.write_bytes(content)
    with pytest.raises(UserError) as raised:
        check(*((good, file) if as_eval else (file,)))
    assert str(file) in str(raised.value)
    assert words in str(raised.value)
    assert raised.value.code is ExitCode.DATA
    assert raised.value.do


def write_as(kind: str, file: Path) -> Path:
    """Write ROWS as that kind of file."""
    path = file.with_suffix(f".{kind}")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "json":
        path.write_text("\ufeff" + json.dumps(ROWS, indent=2), encoding="utf-8")
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    else:
        mark = {"csv": ",", "tsv": "\t"}[kind]
        lines = [f'"{row["prompt"]}"{mark}"{row["response"]}"' for row in ROWS]
        path.write_text(f"prompt{mark}response\n" + "\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "parquet", "jsonl.gz"])
def test_other_formats_pass_too_and_so_does_a_folder_of_them(tmp_path: Path, kind: str) -> None:
    check(write_as(kind, tmp_path / "it's here"))
    check(tmp_path)


def test_rows_in_gzip_are_looked_at_too(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl.gz"
    file.write_bytes(gzip.compress(f"{ROW}\n{{}}\n".encode()))
    with pytest.raises(UserError, match=":2: the row has no column `prompt`") as raised:
        check(file)
    assert raised.value.do.startswith(f"zcat {file} | sed -n '2{{p;q}}'")


def test_a_folder_without_rows_says_so_and_a_wrong_file_in_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder without files of rows"):
        check(tmp_path)
    (tmp_path / "a.jsonl").write_text(ROW)
    (tmp_path / "b.jsonl").write_text("{}")
    (tmp_path / "README.md").write_text("no data")
    with pytest.raises(UserError, match=r"b\.jsonl:1: the row has"):
        check(tmp_path)


def test_settings_that_cannot_be_done_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(ROW)
    with pytest.raises(UserError, match="split, which is for texts"):
        check(tmp_path, on_long_row="split")
    with pytest.raises(UserError, match="nothing would be left"):
        check(tmp_path, eval_fraction=1)


def test_what_is_not_there_or_may_not_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        check(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="14b names no training data") as raised:
        check("")
    assert raised.value.do.startswith("./start.sh 14b --data FILE.jsonl")
    file = tmp_path / "data.jsonl"
    file.write_text(ROW)
    file.chmod(0)
    if not os.access(file, os.R_OK):  # root reads everything
        with pytest.raises(UserError, match="Permission denied"):
            check(file)


def test_the_look_does_not_grow_with_the_file(tmp_path: Path) -> None:
    sparse = tmp_path / "data.jsonl"
    with sparse.open("wb") as file:
        file.write(f"{ROW}\n".encode() * 50_000)
        file.truncate(1 << 40)  # a tebibyte, which could not be read in this test's time
    started = time.monotonic()
    check(sparse)
    assert time.monotonic() - started < 60


def test_rows_that_are_none_can_be_skipped_as_the_advice_says(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(f"garbage\n{ROW}\n{{}}\n")
    with pytest.raises(UserError, match="is not valid JSON") as raised:
        check(file)
    assert "data.on_bad_row=skip" in raised.value.do
    check(file, on_bad_row="skip")


@pytest.mark.parametrize("profile", ["14b", "32b"])
def test_the_large_profiles_hold_out_rows_unless_told_otherwise(
    profile: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(ROW)
    path = f"data.path={tmp_path}"

    def share(*settings: str) -> float:
        config = resolve(profile, (path, *settings), {})[0]
        check_data(config)
        return config.data.held_out_share

    assert share() == 0.02
    assert share("data.eval_fraction=0") == 0
    assert share("data.streaming=true") == 0  # not an error: nobody has asked for it
    assert share(f"data.eval_path={tmp_path}/a.jsonl") == 0


def test_rows_beyond_those_that_are_trained_on_are_not_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(f"{ROW}\n{ROW}\n{{}}\n")
    check(file, max_samples=2)
    with pytest.raises(UserError, match=":3: "):
        check(file, max_samples=3)
    with pytest.raises(UserError, match=":3: "):
        check(tmp_path / "data.jsonl", eval_path=file, max_samples=0)
