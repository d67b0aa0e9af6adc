"""Evaluations by a process of their own: what they are asked, and how they may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inbox.models.held_out import HeldOutSet, HeldOutSets, free_name, set_name
from inbox.models.held_out_scores import Scorer, ScoringFailedError, StoppedError
from inbox.models.models import Models
from rundir.config_file import read_config
from tests.conftest import ROOT
from tests.inbox.models.trained import run_of
from tests.running import wait_for


def _set(name: str, *settings: str) -> HeldOutSet:
    return HeldOutSet(
        name=name, key=name, path=f"/{name}", settings=list(settings), options=[], added_t=0.0
    )


def _says(text: str, *, code: int = 0) -> list[str]:
    """Return a command that prints the words after `evaluate`, as `text` has it, and ends."""
    return [sys.executable, "-c", f"import sys\n{text}\nsys.exit({code})"]


def test_sets_that_are_read_alike_are_scored_by_one_process_others_apart(tmp_path: Path) -> None:
    note = (
        f"open({str(tmp_path / 'log')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "import json; names = [w.split('=')[0] for w in sys.argv[3:sys.argv.index('--json')]]\n"
        "print(json.dumps({'sets': {n: {'loss': 1.0, 'exact_match': None} for n in names}}))"
    )
    scorer = Scorer(_says(note), os.environ, lambda: False)
    sets = [_set("a", "data.columns=x"), _set("b"), _set("c", "data.columns=x")]
    assert scorer.scores("MODEL", sets).keys() == {"a", "b", "c"}
    assert (tmp_path / "log").read_text().splitlines() == [
        "evaluate MODEL b=/b --json",
        "evaluate MODEL a=/a c=/c --json --set data.columns=x",
    ]


@pytest.mark.parametrize("text", ["print('no JSON')", "print('{}')", "sys.exit('out of memory')"])
def test_an_evaluation_without_scores_is_told_with_its_last_words(text: str) -> None:
    with pytest.raises(ScoringFailedError, match=r"ended with [01]: (silent|out of memory)"):
        Scorer(_says(text), os.environ, lambda: False).scores("MODEL", [_set("a")])


def test_an_evaluation_that_was_asked_to_stop_decides_nothing(tmp_path: Path) -> None:
    scorer = Scorer(_says("", code=21), os.environ, lambda: False)
    models = Models(tmp_path / "models", forgetting=0.1, scorer=scorer)
    run = run_of(tmp_path, "tea", {}, start=None)
    with pytest.raises(StoppedError):
        models.consider(job_id="job", name="tea", content_hash="", run=run.path)
    assert not (tmp_path / "models" / "descent.jsonl").exists()
    assert models.start_from(fresh=False) is None


def test_a_stop_ends_the_evaluation_that_goes_on() -> None:
    scorer = Scorer(_says("import time; time.sleep(60)"), os.environ, lambda: True)
    with pytest.raises(StoppedError):
        scorer.scores("MODEL", [_set("a")])


def test_an_evaluation_does_not_outlive_a_killed_inbox(tmp_path: Path) -> None:
    run = run_of(tmp_path, "tea", {}, start=None)
    pid_file = tmp_path / "pid"
    wait = (
        f"import os, time; open({str(pid_file)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(60)"
    )
    words = ["0", str(tmp_path / "models"), str(run.path), "job", "tea", *_says(wait)]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.inbox.models.considering", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        wait_for(lambda: pid_file.exists() and pid_file.read_text().endswith(" "), why="no child")
        child = psutil.Process(int(pid_file.read_text()))
        process.send_signal(signal.SIGKILL)
    child.wait(timeout=30)


def test_a_set_is_read_as_its_run_read_it(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    run = run_of(tmp_path, "tea", {}, start=None)
    text = run.config.read_text()
    text = text.replace('chat_template = ""', f'chat_template = "{template}"')
    run.config.write_text(text.replace('columns = ""', 'columns = "text"'))
    sets = HeldOutSets(tmp_path / "sets")
    made = sets.add(run, read_config(run.config), "tea.jsonl")
    assert made is not None
    kept = {f"data.chat_template={template}", "data.columns=text", "data.max_seq_length=128"}
    assert kept <= set(made.settings)
    assert made.options == []
    assert sets.add(run, read_config(run.config), "tea.jsonl") == made  # once
    template.unlink()
    (again,) = sets.named()
    assert set(made.settings) - set(again.settings) == {f"data.chat_template={template}"}


@pytest.mark.parametrize(
    ("dropped", "name"),
    [
        ("tea.jsonl", "tea"),
        ("my notes (2).csv", "my-notes-2"),
        ("größe.txt", "gr-e"),
        ("_-.jsonl", "data"),
        ("latest.jsonl", "data"),
        ("a" * 60 + ".json", "a" * 40),
        ("folder.with.dots", "folder-with"),
        ("茶.jsonl", "data"),
    ],
)
def test_a_set_has_a_name_that_a_run_and_an_evaluation_take(dropped: str, name: str) -> None:
    assert set_name(dropped) == name


def test_two_sets_are_not_called_the_same() -> None:
    assert free_name("tea", "0123456789", set()) == "tea"
    assert free_name("tea", "0123456789", {"tea"}) == "tea-012345"
    assert len(free_name("a" * 40, "0123456789", {"a" * 40})) == 40
