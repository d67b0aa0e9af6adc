"""The parts of data.path are parsed as intended, and joined again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rundir.data_paths import DataPath, as_text, data_paths, name_of
from rundir.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a.jsonl", [DataPath("a.jsonl")]),
        ("/x/a.jsonl,b.parquet:0.3", [DataPath("/x/a.jsonl"), DataPath("b.parquet", 0.3)]),
        ("a.jsonl:2", [DataPath("a.jsonl", 2)]),
        ("hf:owner/name", [DataPath("hf:owner/name")]),
        ("hf:owner/name/train:0.5, c", [DataPath("hf:owner/name/train", 0.5), DataPath("c")]),
        ("odd:name.jsonl", [DataPath("odd:name.jsonl")]),
    ],
)
def test_paths_and_weights_are_told_apart(text: str, expected: list[DataPath]) -> None:
    assert data_paths(text) == expected
    assert data_paths(as_text(expected)) == expected


def test_a_path_that_is_there_is_one_whatever_is_in_it(tmp_path: Path) -> None:
    for name in ("a,b.jsonl", "c:2", "d"):
        (tmp_path / name).touch()
    for name in ("a,b.jsonl", "c:2"):
        assert data_paths(str(tmp_path / name)) == [DataPath(str(tmp_path / name))]
    weighted = data_paths(f"{tmp_path}/a,b.jsonl:0.5")
    assert weighted == [DataPath(str(tmp_path / "a,b.jsonl"), 0.5)]
    both = f"{tmp_path}/c:2,{tmp_path}/d:2"
    assert data_paths(both) == [DataPath(f"{tmp_path}/c:2"), DataPath(f"{tmp_path}/d", 2)]


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_a_weight_that_is_none_is_refused_with_what_it_means(weight: str) -> None:
    with pytest.raises(UserError, match="above 0") as raised:
        data_paths(f"a.jsonl,b.jsonl:{weight}")
    assert "--data b.jsonl:0.5" in raised.value.do


def test_a_name_for_files_has_no_weight_and_no_path() -> None:
    assert name_of("/x/a.jsonl") == "a"
    assert name_of("/x/a.jsonl:2,/y/b.csv,c.txt:0.5") == "a+2"
