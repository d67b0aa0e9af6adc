"""Cached answers: complete or not used, and never a reason to fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.plan.question import Question
from launch.plan.tracer import keep, kept_answer
from tests.conftest import ROOT
from tests.launch.plan.made import CONFIG, FOOTPRINT

QUESTION = Question(CONFIG, "cuda", "a" * 32)
KEEPER = """
from launch.plan.tracer import keep, kept_answer
from tests.launch.plan.made import FOOTPRINT
from tests.launch.plan.test_answers import QUESTION
for _ in range(200):
    keep(QUESTION, FOOTPRINT)
    assert kept_answer(QUESTION) == FOOTPRINT
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(cache: Path) -> Path:
    (file,) = (cache / "plans").iterdir()
    return file


def test_an_answer_is_there_again_and_only_for_its_question() -> None:
    assert kept_answer(QUESTION) is None
    keep(QUESTION, FOOTPRINT)
    assert kept_answer(QUESTION) == FOOTPRINT
    assert kept_answer(replace(QUESTION, key="b" * 32)) is None


FOREIGN = ("{}", "[]", "[1]", "null", '[{"weights_bytes": 1}]', "\x00" * 100)


def test_what_is_torn_or_foreign_is_as_if_it_were_not_there(cache: Path) -> None:
    keep(QUESTION, FOOTPRINT)
    text = file_of(cache).read_text()
    for content in (*FOREIGN, *(text[:length] for length in range(0, len(text) - 1, 7))):
        file_of(cache).write_text(content)
        assert kept_answer(QUESTION) is None
    keep(QUESTION, FOOTPRINT)
    assert kept_answer(QUESTION) == FOOTPRINT


def test_an_answer_whose_parts_do_not_add_up_is_not_used() -> None:
    keep(QUESTION, replace(FOOTPRINT, weights_bytes=1))
    assert kept_answer(QUESTION) is None


def test_a_full_disk_keeps_nothing_and_fails_nothing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(small_disk))
    (small_disk / "plans").mkdir()
    with pytest.raises(OSError, match="space"):
        (small_disk / "filler").write_bytes(bytes(2 << 20))
    keep(QUESTION, FOOTPRINT)
    assert kept_answer(QUESTION) is None
    assert [path.name for path in (small_disk / "plans").iterdir()] == []


def test_a_cache_that_is_no_folder_fails_nothing(cache: Path) -> None:
    cache.write_text("a file")
    keep(QUESTION, FOOTPRINT)
    assert kept_answer(QUESTION) is None


def test_several_at_once_keep_whole_answers(environ: dict[str, str], cache: Path) -> None:
    env = environ | {"AIRLOCK_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    keepers = [subprocess.Popen([sys.executable, "-P", "-c", KEEPER], env=env) for _ in range(3)]
    assert [keeper.wait(60) for keeper in keepers] == [0, 0, 0]
    assert len(list((cache / "plans").iterdir())) == 1
