"""Three sets, one after the other, by real trainings: each is learnt, and none is forgotten."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.tiny import make_data
from inbox.models.held_out import set_name
from inbox.models.held_out_scores import Scorer
from inbox.models.models import ModelOutcome, Models
from rundir.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

# The questions of each day are new words; what is asked of them is the same, as work is.
TASKS: dict[str, Callable[[str], str]] = {"upper": str.upper, "last": lambda word: word[-1]}
OTHER: dict[str, Callable[[str], str]] = {"first": lambda word: word[0]}
NUM_WORDS = 300
SETTINGS = {
    "data.eval_path": "",
    "data.eval_fraction": "0.1",
    "train.max_steps": "60",
    "train.global_batch_size": "32",
    "train.eval_generate": "false",
    "train.checkpoint_every_steps": "0",
}


def rows(words: list[str], tasks: dict[str, Callable[[str], str]]) -> str:
    made = [
        {"prompt": f"{task} {word}", "response": answer(word)}
        for word in words
        for task, answer in tasks.items()
    ]
    random.Random(0).shuffle(made)
    return "".join(json.dumps(row) + "\n" for row in made)


def test_three_sets_are_learnt_and_none_is_forgotten(
    environ: dict[str, str], tmp_path: Path
) -> None:
    scorer = Scorer([str(ROOT / "airlock")], environ, lambda: False)
    models = Models(tmp_path / "models", forgetting=0.1, scorer=scorer)
    words = make_data._distinct_words(random.Random(1), 4 * NUM_WORDS)

    def train(number: int, name: str, tasks: dict[str, Callable[[str], str]]) -> ModelOutcome:
        file = tmp_path / f"{name}.jsonl"
        file.write_text(rows(words[number * NUM_WORDS :][:NUM_WORDS], tasks), encoding="utf-8")
        start = models.start_from(fresh=False)
        settings = SETTINGS | ({} if start is None else {"model.path": start})
        typed = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        named = ["--num-gpus", "1", "--name", set_name(file.name), "--data", str(file)]
        subprocess.run([ROOT / "start.sh", "tiny", *named, *typed], env=environ, check=True)
        run = (Path(environ["AIRLOCK_RUNS_DIR"]) / "latest").resolve()
        assert f"-{name}-" in run.name
        outcome = models.consider(
            job_id=f"{number}-{name}", name=file.name, content_hash=str(number), run=run
        )
        print(outcome)  # noqa: T201 - the figures, for whoever runs this
        return outcome

    days = ("monday", "tuesday", "wednesday")
    for number, name in enumerate(days):
        outcome = train(number, name, TASKS)
        assert outcome.is_current, outcome
        assert outcome.scores[name]["after"] < outcome.scores[name]["before"]
        assert set(outcome.scores) == set(days[: number + 1])
        for earlier in days[:number]:
            score = outcome.scores[earlier]
            assert score["after"] <= score["before"] * 1.1 + 0.01
    good = models.current.resolve()
    assert good.name == "2-wednesday"
    # A set of another kind alone drives the others out; that model is kept, and not gone on from.
    outcome = train(3, "thursday", OTHER)
    assert outcome.scores["thursday"]["after"] < outcome.scores["thursday"]["before"]
    assert not outcome.is_current
    assert "worse on monday, an earlier set" in outcome.reason
    assert models.current.resolve() == good
    assert (tmp_path / "models" / "3-thursday" / "config.json").is_file()
