"""The data rung: it reads what a run reads, and checks the batches that ranks will get."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnosing import clone, diagnose, edit

ROW = '{"prompt": "upper cat", "response": "CAT"}\n'


def test_the_data_of_tiny_are_green(on_cpu: dict[str, str]) -> None:
    ended = diagnose("data", env=on_cpu)
    assert ended.code == 0, ended.output
    figures = ended.finding("batches")["figures"]
    assert figures["num_steps"] == 10
    assert 0 < figures["num_label_tokens"] < figures["num_tokens"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"prompt": "upper cat", "resp', "3"),
        ('{"prompt": "upper cat", "response": true}', "response"),
        ('{"prompt": "upper cat"}', "response"),
    ],
)
def test_a_bad_row_is_named_with_its_line(
    on_cpu: dict[str, str], tmp_path: Path, bad: str, says: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{ROW}{ROW}{bad}\n{ROW}")
    ended = diagnose("data", "--data", str(file), env=on_cpu)
    assert ended.code == 4
    found = ended.finding("rows")
    assert not found["ok"]
    assert str(file) in found["text"]
    assert says in found["text"]
    assert found["do"]


def test_a_bad_row_far_down_is_found_as_well(on_cpu: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(ROW * 40_000 + '{"prompt": 1}\n')
    ended = diagnose("data", "--data", str(file), env=on_cpu)
    assert ended.code == 4
    assert "40001" in ended.finding("rows")["text"].replace(",", "")


def test_columns_that_nobody_knows_are_red(on_cpu: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"left": "upper cat", "right": "CAT"}\n')
    ended = diagnose("data", "--data", str(file), env=on_cpu)
    assert ended.code == 4
    assert "left" in ended.finding("rows")["text"]
    assert "data.columns" in ended.finding("rows")["do"]


def test_a_file_that_is_not_there_is_red(on_cpu: dict[str, str], tmp_path: Path) -> None:
    ended = diagnose("data", "--data", str(tmp_path / "none.jsonl"), env=on_cpu)
    assert ended.code == 4
    assert "none.jsonl" in ended.finding("rows")["text"]


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "batch",
            "tokens[first:last]",
            "tokens[first - 1 : last - 1]",
            "a label differs from the token at its position",
        ),
        ("feed", "shares[self._rank]", "shares[0]", "the ranks' batches have"),
        (
            "feed",
            "for share in balanced_shares(lengths, self._world_size)",
            "for share in [list(range(len(indices)))] * self._world_size",
            "exactly once",
        ),
    ],
)
def test_batches_that_are_not_what_they_should_be_are_red(
    on_cpu: dict[str, str], tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    root = clone(tmp_path / "clone")
    edit(root / f"train/batches/{file}.py", old, new)
    data = Path(__file__).resolve().parents[2] / "examples/tiny/train.jsonl"
    env = on_cpu | {"PYTHONPATH": str(root)}
    ended = diagnose("data", "--data", str(data), "--set", "data.max_samples=500", env=env)
    assert ended.code == 4
    assert says in ended.finding("batches")["text"]
    assert ended.finding("rows")["ok"]
