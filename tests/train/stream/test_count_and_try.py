"""Data that ranks are to stream: rows are counted, some are tried, and nothing is tokenised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.files.data_file import check_data
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, create_run
from rundir.prepared import read_prepared
from tests.train.data.test_prepare_data import (
    asked,
    cache,
    file,
    model,
    prepared_by_program,
    rows,
    saved_tokenizer,
)
from train.prepare import prepare
from train.stream.pieces import Pieces

__all__ = ["asked", "cache", "file", "model", "saved_tokenizer"]  # their fixtures

GOOD = [(f"p{i}", "r" * (i % 9 + 1)) for i in range(1000)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    return create_run("tiny")


def configured(run: RunDir, path: Path, **data: Any) -> None:
    plain = RunConfig(profile="tiny")
    section = replace(plain.data, path=str(path), streaming=True, **data)
    run.config.write_text(config_text(replace(plain, data=section), {}), encoding="utf-8")


def test_rows_are_counted_and_shown_and_only_held_out_data_are_tokenised(
    file: Path, model: Path, run: RunDir, cache: Path, asked: dict[str, str]
) -> None:
    file.write_text(rows(*GOOD), encoding="utf-8")
    held_out = file.with_name("held_out.jsonl")
    held_out.write_text(rows(*GOOD[:7]), encoding="utf-8")
    configured(run, file, eval_path=str(held_out))
    done = prepared_by_program(run, model, asked)
    assert (done.returncode, done.stderr) == (0, "")
    line = next(line for line in done.stdout.splitlines() if file.name in line)
    assert "streamed: 1,000 rows in 1 files, 256 of them tried" in line
    assert "nobody looks for duplicates" in line
    prepared = read_prepared(run)
    assert (prepared.train.is_streamed, prepared.train.num_samples) == (True, 1000)
    assert Pieces.load(Path(prepared.train.path)).num_rows == 1000
    assert prepared.evaluation is not None
    assert (prepared.evaluation.is_streamed, prepared.evaluation.num_samples) == (False, 7)
    assert len(list(cache.glob("[!.]*"))) == 1  # of the held-out data
    shown = (run.data / "samples.txt").read_text("utf-8").split("\n\n")
    assert shown[0] == "<|user|>p0<|assistant|>[[r<|end|>]]"
    assert len(shown) == 3


@pytest.mark.parametrize(("place", "is_found"), [(3, True), (900, False)])
def test_a_bad_row_is_said_before_the_ranks_start_if_it_is_among_the_first(
    file: Path, model: Path, run: RunDir, place: int, is_found: bool
) -> None:
    lines = rows(*GOOD).splitlines()
    lines[place - 1] = "{"
    file.write_text("\n".join(lines), encoding="utf-8")
    configured(run, file)
    if is_found:
        with pytest.raises(UserError, match=f"{file}:{place}: the row is not valid JSON") as raised:
            prepare(run, model, None)
        assert raised.value.code == ExitCode.DATA
    else:
        assert prepare(run, model, None).train.num_samples == 1000


def test_bad_rows_are_no_error_if_they_are_to_be_left_out(
    file: Path, model: Path, run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("{\n" + rows(*GOOD[:5]), encoding="utf-8")
    configured(run, file, on_bad_row="skip")
    assert prepare(run, model, None).train.num_samples == 6
    assert "a bad row is left out and listed when its turn comes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "data", "says"),
    [
        (rows(*GOOD), {"max_seq_length": 8}, None),
        (rows(("p" * 30, "r")), {"max_seq_length": 8}, "all of the first 1 rows have more than 8"),
        ("{\n{\n", {"on_bad_row": "skip"}, "all of the first 2 rows are bad"),
        ('{"a": 1}\n', {}, "has none of the columns that are known"),
        (rows(*GOOD), {"columns": "x"}, "has no column `x`"),
        (rows(*GOOD), {"on_long_row": "split"}, "which is for texts"),
    ],
)
def test_what_no_row_can_be_trained_with_is_said(
    file: Path, model: Path, run: RunDir, text: str, data: dict[str, Any], says: str | None
) -> None:
    file.write_text(text, encoding="utf-8")
    configured(run, file, **data)
    if says is None:
        prepare(run, model, None)
        return
    with pytest.raises(UserError, match=says) as raised:
        prepare(run, model, None)
    assert raised.value.code == ExitCode.DATA


def test_a_table_of_names_alone_has_no_rows(file: Path, model: Path, run: RunDir) -> None:
    path = file.with_suffix(".csv")
    path.write_text("prompt,response\n\n")
    configured(run, path)
    with pytest.raises(UserError, match=f"{path} has no rows"):
        prepare(run, model, None)


def test_only_the_first_rows_are_counted_if_no_more_are_wanted(
    file: Path, model: Path, run: RunDir
) -> None:
    file.write_text(rows(*GOOD) + "{\n" * 5, encoding="utf-8")
    configured(run, file, max_samples=7)
    assert prepare(run, model, None).train.num_samples == 7


def test_held_out_rows_must_have_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    config = RunConfig(profile="tiny")
    data = replace(config.data, path=str(path), streaming=True, eval_fraction=0.5)
    with pytest.raises(UserError, match=r"eval_fraction is 0.5.*nobody has read all rows"):
        check_data(replace(config, data=data))
    check_data(replace(config, data=replace(data, eval_path=str(path))))
