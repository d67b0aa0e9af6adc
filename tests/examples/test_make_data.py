"""The data of `tiny`: the same bytes each time, right answers, no held-out prompt in training."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tiny"
SCRIPT = FOLDER / "make_data.py"
MADE: dict[str, Any] = runpy.run_path(str(SCRIPT))
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


TRAIN, HELD_OUT = rows("train"), rows("heldout")
SUM = re.compile(r"(\d) \+ (\d)")


def test_the_script_writes_the_very_files_that_are_shipped(
    environ: dict[str, str], tmp_path: Path
) -> None:
    copy = tmp_path / "make_data.py"
    copy.write_bytes(SCRIPT.read_bytes())
    for hash_seed in ("1", "2"):
        env = environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-P", str(copy)], env=env, check=True)
        for name in ("train.jsonl", "heldout.jsonl"):
            assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_another_seed_gives_other_rows() -> None:
    make = MADE["make"]
    assert make(1) == make(1) != make(2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Upper  Bako", "upper bako"),
        ("last bako?", "last bako"),
        (" 2 + 5 . ", "2 + 5"),
        ("LAST STRASSE", "last straße"),
        ("last\tbako\n!", "last bako"),
    ],
)
def test_another_spelling_is_the_same_prompt(one: str, other: str) -> None:
    assert MADE["normalise"](one) == MADE["normalise"](other)


@pytest.mark.parametrize(
    ("one", "other"), [("2 + 5", "5 + 2"), ("upper bako", "last bako"), ("last ba", "last bab")]
)
def test_another_question_is_another_prompt(one: str, other: str) -> None:
    assert MADE["normalise"](one) != MADE["normalise"](other)


def test_no_prompt_of_the_held_out_data_is_trained_on_in_any_spelling() -> None:
    normalise = MADE["normalise"]
    trained = {normalise(row["prompt"]) for row in TRAIN}
    held_out = [normalise(row["prompt"]) for row in HELD_OUT]
    assert len(set(held_out)) == len(held_out)
    assert not trained & set(held_out)


def test_a_word_is_trained_on_or_held_out_whatever_is_asked_about_it() -> None:
    words = [
        {row["prompt"].split()[1] for row in some if not SUM.fullmatch(row["prompt"])}
        for some in (TRAIN, HELD_OUT)
    ]
    assert min(map(len, words)) > 0
    assert not words[0] & words[1]


def test_a_sum_and_its_mirror_image_are_on_the_same_side() -> None:
    sides = [
        {frozenset(match.groups()) for row in some if (match := SUM.fullmatch(row["prompt"]))}
        for some in (TRAIN, HELD_OUT)
    ]
    assert len(sides[0]) + len(sides[1]) == 55
    assert len(sides[1]) == 5
    assert not sides[0] & sides[1]
    asked = {row["prompt"] for row in (*TRAIN, *HELD_OUT) if SUM.fullmatch(row["prompt"])}
    assert len(asked) == 100


def test_every_answer_is_right() -> None:
    seen = set()
    for row in (*TRAIN, *HELD_OUT):
        assert set(row) == {"prompt", "response"}
        if match := SUM.fullmatch(row["prompt"]):
            task, right = "sum", str(int(match[1]) + int(match[2]))
        else:
            task, word = row["prompt"].split()
            right = {"upper": word.upper(), "last": word[-1]}[task]
        assert row["response"] == right
        seen.add(task)
    assert seen == {"sum", "upper", "last"}
