"""`airlock evaluate`: a run's model gets the loss that the run reported, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rundir.events import read_events
from rundir.paths import ROOT
from tests.models import tiny_model
from tests.running import SHORT, Typed, User, as_options

HELD_OUT = ROOT / "examples" / "tiny" / "heldout.jsonl"


def test_the_model_of_a_run_has_the_loss_that_the_run_reported(user: User) -> None:
    held_out = user.folder / "few.jsonl"
    held_out.write_text("".join(HELD_OUT.read_text("utf-8").splitlines(True)[:13]), "utf-8")
    data = as_options(f"data.eval_path={held_out}", f"evaluation.named.path={held_out}")
    out = user.output_of(*SHORT, *data)
    assert "named" in out
    run = user.run()
    told = [one for one in read_events(run.events) if one["kind"] == "metric"]
    (*_, last) = [one for one in told if one["name"] == "eval"]
    (*_, named) = [one for one in told if one["name"] == "eval.set"]
    assert named["loss"] == pytest.approx(last["loss"], rel=1e-6)
    examples = user.folder / "examples.jsonl"
    for num_ranks in (1, 2):
        words = ("evaluate", str(run.path), f"held={held_out}", "--json")
        more = ("--num-gpus", str(num_ranks), "--examples", str(examples), "--no-generate")
        out = user.output_of(*words, *more)
        found = json.loads(out)["sets"]["held"]
        assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)
        assert found["num_samples"] == 13
        rows = [json.loads(line) for line in examples.read_text("utf-8").splitlines()]
        assert [row["row"] for row in rows] == list(range(1, 14))
        weighted = sum(row["loss"] * row["num_labels"] for row in rows)
        assert weighted / found["num_label_tokens"] == pytest.approx(last["loss"], rel=1e-6)
    assert user.run().path == run.path  # `latest` is still the training


@pytest.mark.long
def test_adapters_are_evaluated_as_a_run_and_as_a_folder_on_several_sets(user: User) -> None:
    lines = HELD_OUT.read_text("utf-8").splitlines(keepends=True)
    few, fewer = user.folder / "few.jsonl", user.folder / "fewer.jsonl"
    few.write_text("".join(lines[:6]), "utf-8")
    fewer.write_text("".join(lines[6:9]), "utf-8")
    lora = ("train.method=lora", "train.merge_adapters=false", f"data.eval_path={few}")
    sets = [word for one in lora for word in ("--set", one)]
    user.output_of(*SHORT, *sets)
    run = user.run()
    told_of = [one for one in read_events(run.events) if one["name"] == "eval"]
    (*_, last) = [one for one in told_of if one["kind"] == "metric"]
    told = {}
    for model in (run.path, run.adapter):
        words = ("evaluate", str(model), f"first={few}", str(fewer), "--json")
        out = user.output_of(*words)
        told[model] = json.loads(out)["sets"]
        assert list(told[model]) == ["first", "fewer"]
        assert told[model]["first"]["loss"] == pytest.approx(last["loss"], rel=1e-5)
        assert [one["num_samples"] for one in told[model].values()] == [6, 3]
        assert all(0 <= one["exact_match"] <= 1 for one in told[model].values())
    assert told[run.path] == told[run.adapter]


@pytest.mark.long
def test_exact_match_counts_the_answers_that_are_given_exactly(user: User) -> None:
    data = user.folder / "aaaa.jsonl"
    row = json.dumps({"prompt": "p", "response": "aaaa"}) + "\n"
    data.write_text(row * 8)
    learnt = ("--data", str(data), "--set", "data.eval_path=", "--set", "train.max_steps=30")
    fast = as_options("train.learning_rate=0.01", "train.warmup_steps=0")
    user.output_of(*SHORT, *learnt, *fast)
    other = user.folder / "half.jsonl"
    other.write_text(row + json.dumps({"prompt": "p", "response": "bb"}) + "\n")
    examples = user.folder / "examples.jsonl"
    words = ("evaluate", str(user.run().path), str(data), f"half={other}", "--json")
    out = user.output_of(*words, "--examples", str(examples))
    found = {name: one["exact_match"] for name, one in json.loads(out)["sets"].items()}
    assert found == {"aaaa": 1.0, "half": 0.5}
    rows = [json.loads(line) for line in examples.read_text("utf-8").splitlines()]
    assert [one["exact_match"] for one in rows if one["set"] == "half"] == [True, False]


@pytest.mark.parametrize(
    ("words", "offline", "code", "said"),
    [
        (("no-one/no-model", "GOOD"), "1", 4, "no-one/no-model is not whole in"),
        (("no/such/thing/at-all", "GOOD"), "0", 2, "no model 'no/such/thing/at-all'"),
        (("EMPTY", "GOOD"), "0", 2, "holds neither a run, a model nor adapters"),
        (("MODEL", "GOOD", "bad=BAD"), "0", 5, "bad.jsonl:2"),
        (("MODEL", "GOOD", "GOOD"), "0", 2, "two sets are called good"),
        (("MODEL", "missing.jsonl"), "0", 5, "missing.jsonl"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else None,
)
def test_what_cannot_be_evaluated_is_said_in_one_error(
    typed: Typed,
    tmp_path: Path,
    words: tuple[str, ...],
    offline: str,
    code: int,
    said: str,
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    row = json.dumps({"prompt": "p", "response": "r"}) + "\n"
    good.write_text(row * 3)
    bad.write_text(row + '{"prompt": "p"}\n' + row)
    (tmp_path / "empty").mkdir()
    paths = {"GOOD": good, "BAD": bad, "EMPTY": tmp_path / "empty", "MODEL": tmp_path / "model"}
    if "MODEL" in words:
        tiny_model(tmp_path / "model")
    for name, path in paths.items():
        words = tuple(word.replace(name, str(path)) for word in words)
    found, out, err = typed("evaluate", *words, "--json", env={"HF_HUB_OFFLINE": offline})
    assert (found, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err
    assert "→ " in err
