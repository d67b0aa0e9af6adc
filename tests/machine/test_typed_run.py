"""What was typed to start a run is read back from its folder, for advice about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from machine.typed import parsed, typed_run
from rundir.paths import RunDir
from tests.running import here


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIRLOCK_SCRIPT", raising=False)
    found = RunDir(tmp_path / "runs/a")
    found.path.mkdir(parents=True)
    return found


# The first line of command.txt, and the same with --resume; {root} is the clone.
RESUMED = {
    "./start_single.sh --data 'my data.jsonl'": "{root}/start_single.sh --data 'my data.jsonl'",
    "NUM_GPUS=2 AIRLOCK_X='a b' ./start.sh 14b --force": "NUM_GPUS=2 AIRLOCK_X='a b' "
    "{root}/start.sh 14b --force",
    "./start.sh tiny --resume runs/b --set a.b=1": "{root}/start.sh tiny --set a.b=1",
    "./start.sh tiny --demo --resume=runs/b": "{root}/start.sh tiny",
    "./start.sh tiny --resume --name x": "{root}/start.sh tiny --name x",
    "./start.sh --again runs/b": "{root}/start.sh",
    "./airlock run tiny": "{root}/airlock run tiny",
    "python -m train tiny --data a": "{root}/airlock run --plain tiny --data a",
}


@pytest.mark.parametrize("typed", RESUMED)
def test_a_run_goes_on_with_all_that_was_typed(run: RunDir, typed: str) -> None:
    run.command.write_text(f"{typed}\n\n# with torch's own:\ntorchrun x\n")
    expected = re.sub(r"\{root\}/(\S+)", lambda found: here(found[1]), RESUMED[typed])
    assert typed_run(run, "tiny").resumed(run) == f"{expected} --resume runs/a"


def test_it_starts_anew_as_it_was_typed(run: RunDir) -> None:
    run.command.write_text("RUN_IMPORT_TEST=1 ./start.sh my.py --resume x\n")
    assert typed_run(run).again() == f"RUN_IMPORT_TEST=1 {here('start.sh')} my.py --resume x"


def test_a_script_that_lies_here_is_named_as_it_was_typed(run: RunDir) -> None:
    Path("start.sh").touch()
    run.command.write_text("./start.sh tiny\n")
    assert typed_run(run).again() == "./start.sh tiny"


def test_questions_about_a_run_keep_the_words_that_they_know(run: RunDir) -> None:
    run.command.write_text("NUM_GPUS=2 ./start.sh 14b --data a --set b.c=1 --name n --force\n")
    typed = typed_run(run)
    assert typed.question("plan") == "NUM_GPUS=2 ./airlock plan 14b --data a --set b.c=1"
    assert typed.question("preflight") == "NUM_GPUS=2 ./airlock preflight 14b --set b.c=1"


@pytest.mark.parametrize("text", [None, "", "\n", "./start.sh 'cut off"])
def test_a_run_without_such_a_record_is_started_by_its_profile(
    run: RunDir, text: str | None
) -> None:
    if text is not None:
        run.command.write_text(text)
    assert typed_run(run, "tiny").resumed(run) == "./start.sh tiny --resume runs/a"


@pytest.mark.parametrize("typed", ["--resume", "--resume latest", "--resume=latest"])
def test_the_run_that_was_the_latest_is_named_since_it_is_so_no_longer(
    run: RunDir, typed: str
) -> None:
    Path("start.sh").touch()
    line = f"NUM_GPUS=1 ./start.sh tiny {typed} --set a.b='c d'"
    expected = "NUM_GPUS=1 ./start.sh tiny --resume runs/a --set 'a.b=c d'"
    assert str(parsed(line, "").pinned({"--resume": run, "--again": None})) == expected
    other = "./start.sh tiny --resume runs/b"
    assert str(parsed(other, "").pinned({"--resume": run})) == other
