"""The models of an inbox: kept, scored, made current or not; and all of it after any kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inbox.models.held_out_scores import Scorer
from inbox.models.models import ModelOutcome, Models
from rundir.errors import UserError
from tests.conftest import ROOT
from tests.forked import run_module
from tests.inbox.models.trained import BASE_LOSS, asked, evaluator, model_with, run_of


class Inbox:
    """A folder with models, and the trainings that a test has it consider."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.command = folder, evaluator(folder)
        self.models = self.models_in(folder)

    def models_in(self, folder: Path) -> Models:
        scorer = Scorer(self.command, os.environ, lambda: False)
        return Models(folder / "models", forgetting=0.1, scorer=scorer)

    def train(self, name: str, *, fresh: bool = False, **losses: float | None) -> ModelOutcome:
        """Consider a training on the set `name` that ended with those losses."""
        start = self.models.start_from(fresh=fresh)
        run = run_of(self.folder, name, losses, start=start)
        return self.consider(name, run.path)

    def consider(self, name: str, run: Path) -> ModelOutcome:
        return self.models.consider(
            job_id=f"job-{name}",
            name=f"{name}.jsonl",
            content_hash=f"hash-{name}",
            run=run,
        )

    @property
    def current(self) -> str:
        return str((self.folder / "models" / "current").readlink())

    @property
    def lines(self) -> list[dict[str, object]]:
        text = (self.folder / "models" / "descent.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


def test_the_first_model_is_compared_with_its_base_and_becomes_current(inbox: Inbox) -> None:
    assert inbox.models.start_from(fresh=False) is None
    outcome = inbox.train("tea", tea=1.0)
    assert outcome == ModelOutcome(
        is_current=True,
        reason="made current: on tea, held-out loss 5.000 to 1.000, -80%",
        scores={"tea": {"before": BASE_LOSS, "base": BASE_LOSS, "after": 1.0, "exact_match": 0.5}},
    )
    assert inbox.current == "job-tea"
    assert inbox.models.start_from(fresh=False) == str(inbox.folder / "models" / "job-tea")
    assert inbox.models.start_from(fresh=True) is None
    # Its weights take no space twice, and outlive the run.
    kept = inbox.folder / "models" / "job-tea" / "model.safetensors"
    assert kept.stat().st_nlink == 2
    shutil.rmtree(inbox.folder / "runs")
    assert kept.stat().st_size == 1 << 21


def test_each_further_model_is_asked_the_questions_of_all_before_it(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    inbox.train("rum", tea=1.05, rum=2.0)
    outcome = inbox.train("gin", tea=1.1, rum=2.1, gin=0.5)
    assert outcome.is_current
    assert inbox.current == "job-gin"
    assert outcome.scores["tea"] == {"before": 1.05, "after": 1.1, "exact_match": 0.5}
    assert outcome.scores["gin"]["before"] == outcome.scores["gin"]["base"] == BASE_LOSS
    # What is known of the model before is not computed again.
    assert asked(inbox.command)[-3:] == [
        ["job-gin", ["gin", "rum", "tea"]],
        ["base", ["gin"]],
        ["job-rum", ["gin"]],
    ]


def test_a_model_that_has_forgotten_is_kept_and_not_made_current(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    outcome = inbox.train("rum", tea=1.2, rum=0.5)
    assert not outcome.is_current
    assert outcome.reason == (
        "kept as job-rum, and not made current: worse on tea, an earlier set: held-out loss 1.000 "
        "to 1.200, +20% (the limit is +10%)"
    )
    assert inbox.current == "job-tea"
    assert (inbox.folder / "models" / "job-rum" / "model.safetensors").is_file()
    # The next one goes on from the good model, and owes nothing to the set that was not learnt.
    assert inbox.train("gin", tea=1.0, gin=1.0, rum=9.0).is_current
    assert inbox.lines[-1]["from"] == "job-tea"
    assert inbox.lines[-1]["sets"] == ["tea", "gin"]


@pytest.mark.parametrize("loss", [None, 6.0], ids=["no number", "worse than before"])
def test_a_model_that_is_bad_on_its_own_rows_is_not_made_current(
    inbox: Inbox, loss: float | None
) -> None:
    inbox.train("tea", tea=0.001)
    outcome = inbox.train("rum", tea=0.01, rum=loss)  # a rise on tea that nobody could tell
    assert not outcome.is_current
    assert "not made current: worse on rum, its own held-out rows: " in outcome.reason
    assert inbox.current == "job-tea"


def test_the_line_of_descent_says_what_each_model_came_from(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    inbox.train("rum", tea=1.0, rum=1.0)
    inbox.train("gin", fresh=True, tea=1.0, rum=1.0, gin=1.0)
    base = str(inbox.folder / "base")
    parents = [(line["job"], line["from"], line["base"]) for line in inbox.lines]
    assert parents == [
        ("job-tea", base, base),
        ("job-rum", "job-tea", base),
        ("job-gin", base, base),
    ]
    assert inbox.lines[1]["trained_on"] == [
        {"name": "tea.jsonl", "content_hash": "hash-tea"},
        {"name": "rum.jsonl", "content_hash": "hash-rum"},
    ]
    assert inbox.lines[2]["trained_on"] == [{"name": "gin.jsonl", "content_hash": "hash-gin"}]


def test_two_sets_of_one_name_are_scored_under_two(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    run = run_of(inbox.folder, "tea2", {"tea": 1.0}, start=None, rows=4)
    outcome = inbox.models.consider(
        job_id="job-2", name="tea.csv", content_hash="other", run=run.path
    )
    first, second = outcome.scores
    assert first == "tea"
    assert second.startswith("tea-")


def test_a_run_that_held_nothing_out_is_told_as_such(inbox: Inbox) -> None:
    run = run_of(inbox.folder, "tea", {}, start=None, rows=0)
    outcome = inbox.consider("tea", run.path)
    assert (outcome.is_current, outcome.scores) == (True, {})
    assert "nothing was held out" in outcome.reason


def test_a_run_that_exported_adapters_alone_is_no_model_to_go_on_from(inbox: Inbox) -> None:
    run = run_of(inbox.folder, "tea", {}, start=None)
    run.model.rename(run.adapter)
    outcome = inbox.consider("tea", run.path)
    assert not outcome.is_current
    assert "train.merge_adapters=true" in outcome.reason


def test_an_evaluation_that_fails_decides_nothing_and_can_be_done_again(inbox: Inbox) -> None:
    run = run_of(inbox.folder, "tea", {"tea": 1.0}, start=None)
    good = inbox.models
    inbox.command = [sys.executable, "-c", "raise SystemExit('no GPU is free')"]
    inbox.models = inbox.models_in(inbox.folder)
    outcome = inbox.consider("tea", run.path)
    assert not outcome.is_current
    assert "no GPU is free" in outcome.reason
    assert not (inbox.folder / "models" / "current").exists()
    inbox.models = good
    assert inbox.consider("tea", run.path).is_current
    assert inbox.current == "job-tea"


def test_a_link_that_leads_nowhere_is_said_and_not_taken_for_a_fresh_start(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    shutil.rmtree(inbox.folder / "models" / "job-tea")
    with pytest.raises(UserError, match="is no model, or gone"):
        inbox.models.start_from(fresh=False)


def test_a_model_put_there_by_hand_is_gone_on_from_and_compared_with(inbox: Inbox) -> None:
    inbox.train("tea", tea=1.0)
    model_with(inbox.folder / "models" / "mine", {"tea": 0.5})
    link = inbox.folder / "models" / "current"
    link.unlink()
    link.symlink_to("mine")
    outcome = inbox.train("rum", tea=1.0, rum=1.0)
    assert "worse on tea" in outcome.reason
    assert link.readlink().name == "mine"


def test_a_full_disk_is_said_and_leaves_nothing_half(inbox: Inbox, small_disk: Path) -> None:
    run = run_of(inbox.folder, "tea", {"tea": 1.0}, start=None)
    inbox.models = inbox.models_in(small_disk)
    with pytest.raises(OSError, match="No space left on device"):
        inbox.consider("tea", run.path)
    assert list((small_disk / "models").iterdir()) == []
    assert inbox.models.start_from(fresh=False) is None


def _snapshot(folder: Path) -> dict[str, object]:
    """Return what is in a folder of models, without times and what a later call removes."""
    contents: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            contents[name] = str(path.readlink())
        elif path.name == "descent.jsonl":
            lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            contents[name] = [{**line, "t": 0, "when": ""} for line in lines]
        elif path.is_file() and path.parent.name != "sets":
            contents[name] = path.read_bytes()
        else:
            contents[name] = None
    return contents


@pytest.mark.long
def test_a_kill_before_any_change_leaves_a_good_model_and_work_that_can_be_ended(
    inbox: Inbox,
) -> None:
    inbox.train("tea", tea=1.0)
    start = inbox.models.start_from(fresh=False)
    run = run_of(inbox.folder, "rum", {"tea": 1.0, "rum": 1.0}, start=start)
    models = inbox.folder / "models"
    kept = inbox.folder / "kept"
    shutil.copytree(models, kept, symlinks=True)

    def consider(at: int) -> subprocess.CompletedProcess[str]:
        words = [str(at), str(models), str(run.path), "job-rum", "rum.jsonl", *inbox.command]
        env, own = os.environ | {"PYTHONPATH": str(ROOT)}, ("inbox.models.models",)
        return run_module("tests.inbox.models.considering", *words, env=env, modules=own)

    whole = consider(0)
    assert whole.returncode == 0, whole.stderr
    wanted = _snapshot(models)
    num_changes = int(whole.stdout)
    assert num_changes > 15
    for at in range(1, num_changes + 1):
        shutil.rmtree(models)
        shutil.copytree(kept, models, symlinks=True)
        assert consider(at).returncode == -signal.SIGKILL
        # At no moment is there anything but a whole, good model.
        linked = str((models / "current").readlink())
        assert linked in ("job-tea", "job-rum")
        assert (models / linked / "model.safetensors").stat().st_size == 1 << 21
        after = consider(0)
        assert after.returncode == 0, after.stderr
        assert _snapshot(models) == wanted, at
