"""What is wrong with the data is known before anything slow: by a look at the first rows alone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.data_file import check_data
from rundir.config import DataConfig, RunConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

ROW = json.dumps({"prompt": "a", "response": "b"})
ROWS = [{"prompt": f"größe {i}", "response": f"b\n{i}"} for i in range(3)]


def check(path: Path | str, eval_path: Path | str = "") -> None:
    check_data(RunConfig(profile="14b", data=DataConfig(path=str(path), eval_path=str(eval_path))))


GOOD: dict[str, bytes] = {
    "plain": f"{ROW}\n{ROW}\n".encode(),
    "without a last newline": ROW.encode(),
    "with a byte order mark": f"\ufeff{ROW}\n".encode(),
    "with Windows's line ends": f"{ROW}\r\n{ROW}\r\n".encode(),
    "with empty lines": f"\n\n{ROW}\n \n".encode(),
    "with more columns": b'{"id": 1, "prompt": "a", "response": "b"}\n',
    "with a first line of megabytes": ROW.replace("a", "a" * 3_000_000).encode(),
    "cut by the look within a character": (ROW + "\n").encode() + b'{"prompt": "'
    + "ü".encode() * 900_000 + b'", "response": "b"}\n',
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_rows_that_can_be_trained_on_pass(tmp_path: Path, case: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(GOOD[case])
    check(file)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "only blanks": (b"\n \r\n\xef\xbb\xbf\n", "has no rows"),
    "no response": (b'{"answer": "b", "prompt": "a"}', "no column `response`; its columns: answer"),
    "the third row": (f"{ROW}\n{ROW}\n{{}}\n{ROW}".encode(), ":3: the row has no column `prompt`"),
    "a number": (b'{"prompt": 1, "response": "b"}', "a int in `prompt`"),
    "messages": (b'{"messages": []}', "its columns: messages"),
    "JSON over many lines": (b'{\n "prompt": "a",\n "response": "b"\n}\n', ":1: the row is"),
    "plain text": (b"Once upon a time\n", ":1: the row is not valid JSON"),
    "an array as a row": (b'["a", "b"]\n', ":1: the row is a list"),
    "UTF-16": (f"{ROW}\n".encode("utf-16"), "is UTF-16 text"),
    "gzip": (b"\x1f\x8b\x08\x00", "is gzip"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
}  # fmt: skip


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
    """ROWS as that kind of file."""
    path = file.with_suffix(f".{kind}")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "json":
        path.write_text("\ufeff" + json.dumps(ROWS, indent=2), encoding="utf-8")
    else:
        mark = {"csv": ",", "tsv": "\t"}[kind]
        lines = [f'"{row["prompt"]}"{mark}"{row["response"]}"' for row in ROWS]
        path.write_text(f"prompt{mark}response\n" + "\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "parquet"])
def test_the_command_that_is_proposed_makes_rows_of_another_format(
    tmp_path: Path, kind: str
) -> None:
    file = write_as(kind, tmp_path / "it's here")
    with pytest.raises(UserError, match="not JSON lines") as raised:
        check(file)
    command, _, then = raised.value.do.partition("   # ")
    assert then == "then --data rows.jsonl"
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    made = tmp_path / "rows.jsonl"
    check(made)
    assert [json.loads(line) for line in made.read_text().splitlines()] == ROWS


def test_an_array_on_one_line_is_an_array_too(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps(ROWS))
    with pytest.raises(UserError, match="is one JSON array"):
        check(file)


def test_of_a_folder_the_file_in_it_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder") as raised:
        check(tmp_path)
    assert "a .jsonl file: one JSON object a line" in raised.value.do
    (tmp_path / "b.jsonl").write_text(ROW)
    with pytest.raises(UserError, match="is a folder") as raised:
        check(tmp_path)
    assert raised.value.do == f"--data {tmp_path}/b.jsonl"


def test_what_is_not_there_or_may_not_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        check(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="14b names no training data") as raised:
        check("")
    assert raised.value.do.startswith("./start.sh 14b --data FILE.jsonl")
    file = tmp_path / "data.jsonl"
    file.write_text(ROW)
    file.chmod(0)
    if not os.access(file, os.R_OK):  # root reads all
        with pytest.raises(UserError, match="Permission denied"):
            check(file)


def test_the_look_does_not_grow_with_the_file(tmp_path: Path) -> None:
    sparse = tmp_path / "data.jsonl"
    with sparse.open("wb") as file:
        file.write(f"{ROW}\n".encode() * 50_000)
        file.truncate(1 << 40)  # a tebibyte that no one could read in this test's time
    started = time.monotonic()
    check(sparse)
    assert time.monotonic() - started < 60
