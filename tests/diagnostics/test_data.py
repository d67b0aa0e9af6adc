"""The data rung: it reads what a run reads, and checks the batches that ranks will get."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnosing import ROOT, diagnose
from tests.running import hooked

ROW = '{"prompt": "upper cat", "response": "CAT"}\n'


@pytest.mark.runs
def test_the_data_of_tiny_are_green(on_cpu: dict[str, str]) -> None:
    ended = diagnose("data", env=on_cpu)
    assert ended.code == 0, ended.output
    figures = ended.finding("batches")["figures"]
    assert figures["num_steps"] == 10
    assert 0 < figures["num_label_tokens"] < figures["num_tokens"]


BAD = {
    "far down": (ROW * 10_000 + '{"prompt": 1}\n', ":10001: "),
    "columns that nobody knows": ('{"left": "upper cat", "right": "CAT"}\n', "left, right"),
    "no file": (None, "No such file"),
}


@pytest.mark.runs
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_trained_on_is_named_with_its_place(
    on_cpu: dict[str, str], tmp_path: Path, case: str
) -> None:
    rows, says = BAD[case]
    file = tmp_path / "rows.jsonl"
    if rows is not None:
        file.write_text(rows)
    ended = diagnose("data", "--data", str(file), env=on_cpu)
    assert ended.code == 4
    (found,) = ended.summary["findings"]
    assert (found["check"], found["ok"]) == ("rows", False)
    assert str(file) in found["text"]
    assert says in found["text"]
    assert found["do"]
    assert ("data.columns" in found["do"]) == (case == "columns that nobody knows")


# Executes the file again with other words in it.
EDIT = """
text = open(module.__file__).read()
assert {old!r} in text
exec(text.replace({old!r}, {new!r}), vars(module))
"""


@pytest.mark.runs
@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "batch",
            "tokens[first:last]",
            "tokens[first - 1 : last - 1]",
            "a label differs from the token at its position",
        ),
        pytest.param(
            "feed",
            "shares[self._rank]",
            "shares[0]",
            "the ranks' batches have",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "feed",
            "for share in balanced_shares(lengths, self._world_size)",
            "for share in [list(range(len(indices)))] * self._world_size",
            "exactly once",
            marks=pytest.mark.long,
        ),
    ],
)
def test_batches_that_are_not_what_they_should_be_are_red(
    on_cpu: dict[str, str], tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    env = on_cpu | hooked(on_cpu, tmp_path, f"train.batches.{file}", EDIT.format(old=old, new=new))
    data = ROOT / "examples/tiny/train.jsonl"
    ended = diagnose("data", "--data", str(data), "--set", "data.max_samples=500", env=env)
    assert ended.code == 4
    assert says in ended.finding("batches")["text"]
    assert ended.finding("rows")["ok"]
