"""The rows that a run holds out, listed in its folder: the same questions for another model."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import RunDir
from tests.train.data.test_prepare_data import cache, model, saved_tokenizer
from tests.train.data.test_readers import write
from train.data.dataset import SampleFile
from train.data.path_samples import prepare_path
from train.data.samples import Recipe

__all__ = ["cache", "model", "saved_tokenizer"]  # their fixtures

PAIRS = [{"prompt": f"p{i}", "response": f"r{i}"} for i in range(60)]


def _pairs(folder: Path) -> Path:
    return write("jsonl", folder, PAIRS)


def _conversations(folder: Path) -> Path:
    def turns(number: int) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": f"größe {number}"},
            {"role": "assistant", "content": "no loss", "weight": 0},
            {"role": "user", "content": "again"},
            {"role": "assistant", "content": f"{number}"},
        ]

    return write("json", folder, [{"messages": turns(i)} for i in range(60)])


def _table(folder: Path) -> Path:
    return write("csv", folder, PAIRS)


def _texts(folder: Path) -> Path:
    path = folder / "rows.txt"
    path.write_text("".join(f"line {i}\n" for i in range(60)), encoding="utf-8")
    return path


def _parquet(folder: Path) -> Path:
    when = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
    return write("parquet", folder, [{**row, "when": when, "raw": b"\xff"} for row in PAIRS])


def _samples(path: Path, model: Path, **recipe: Any) -> list[list[int]]:
    samples = SampleFile(prepare_path(path, model, Recipe(max_seq_length=99, **recipe))[0])
    return [samples[i][0].tolist() for i in range(len(samples))]


@pytest.mark.parametrize("make", [_pairs, _conversations, _table, _texts, _parquet])
@pytest.mark.parametrize("loss_on", ["answers", "last_answer"])
def test_the_rows_held_out_are_listed_and_give_the_same_samples_again(
    model: Path, tmp_path: Path, make: Any, loss_on: Any
) -> None:
    source, run = make(tmp_path), RunDir(tmp_path / "run")
    run.path.mkdir()
    recipe = Recipe(max_seq_length=99, eval_fraction=0.3, loss_on=loss_on)
    for _ in range(2):  # the second time from the cache
        _, evaluation = prepare_path(source, model, recipe, run)
        assert evaluation is not None
        held_out = SampleFile(evaluation)
        (listed,) = run.data.glob("*.held_out.jsonl")
        assert listed.name == f"{source.stem}.held_out.jsonl"
        again = _samples(listed, model, loss_on=loss_on)
        assert again == [held_out[i][0].tolist() for i in range(len(held_out))]
        assert 5 < len(again) < 40
        listed.unlink()


def test_without_held_out_rows_nothing_is_listed(model: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    prepare_path(_pairs(tmp_path), model, Recipe(max_seq_length=99), run)
    assert not run.data.exists()
