"""`airlock evaluate`: a run's model gets the loss that the run reported, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rundir.events import read_events
from rundir.paths import ROOT
from tests.models import tiny_model
from tests.running import SHORT, Start, Typed, ended, finish, run_folder

pytestmark = pytest.mark.runs

HELD_OUT = ROOT / "examples" / "tiny" / "heldout.jsonl"


def test_the_model_of_a_run_has_the_loss_that_the_run_reported(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    held_out = tmp_path / "few.jsonl"
    held_out.write_text("".join(HELD_OUT.read_text("utf-8").splitlines(True)[:13]), "utf-8")
    data = ("--set", f"data.eval_path={held_out}", "--set", f"evaluation.named.path={held_out}")
    with ended(airlock(*SHORT, *data)) as process:
        code, out, _ = finish(process)
    assert code == 0, out
    assert "named" in out
    run = run_folder(environ)
    told = [one for one in read_events(run.events) if one["kind"] == "metric"]
    (*_, last) = [one for one in told if one["name"] == "eval"]
    (*_, named) = [one for one in told if one["name"] == "eval.set"]
    assert named["loss"] == pytest.approx(last["loss"], rel=1e-6)
    examples = tmp_path / "examples.jsonl"
    for num_ranks in (1, 2):
        words = ("evaluate", str(run.path), f"held={held_out}", "--json")
        more = ("--num-gpus", str(num_ranks), "--examples", str(examples), "--no-generate")
        with ended(airlock(*words, *more)) as process:
            code, out, err = finish(process)
        assert code == 0, err
        found = json.loads(out)["sets"]["held"]
        assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)
        assert found["num_samples"] == 13
        rows = [json.loads(line) for line in examples.read_text("utf-8").splitlines()]
        assert [row["row"] for row in rows] == list(range(1, 14))
        weighted = sum(row["loss"] * row["num_labels"] for row in rows)
        assert weighted / found["num_label_tokens"] == pytest.approx(last["loss"], rel=1e-6)
    assert run_folder(environ).path == run.path  # `latest` is still the training


def test_without_evaluation_nothing_is_measured_and_the_report_says_so(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*SHORT, "--set", "train.evaluate=false")) as process:
        code, out, _ = finish(process)
    assert code == 0
    assert "not measured: train.evaluate is false" in out
    names = {one["name"] for one in read_events(run_folder(environ).events)}
    assert "eval" not in names


@pytest.mark.long
def test_adapters_are_evaluated_as_a_run_and_as_a_folder_on_several_sets(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    lines = HELD_OUT.read_text("utf-8").splitlines(keepends=True)
    few, fewer = tmp_path / "few.jsonl", tmp_path / "fewer.jsonl"
    few.write_text("".join(lines[:6]), "utf-8")
    fewer.write_text("".join(lines[6:9]), "utf-8")
    lora = ("train.method=lora", "train.merge_adapters=false", f"data.eval_path={few}")
    sets = [word for one in lora for word in ("--set", one)]
    with ended(airlock(*SHORT, *sets)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    run = run_folder(environ)
    told_of = [one for one in read_events(run.events) if one["name"] == "eval"]
    (*_, last) = [one for one in told_of if one["kind"] == "metric"]
    told = {}
    for model in (run.path, run.adapter):
        words = ("evaluate", str(model), f"first={few}", str(fewer), "--json")
        with ended(airlock(*words)) as process:
            code, out, err = finish(process)
        assert code == 0, err
        told[model] = json.loads(out)["sets"]
        assert list(told[model]) == ["first", "fewer"]
        assert told[model]["first"]["loss"] == pytest.approx(last["loss"], rel=1e-5)
        assert [one["num_samples"] for one in told[model].values()] == [6, 3]
        assert all(0 <= one["exact_match"] <= 1 for one in told[model].values())
    assert told[run.path] == told[run.adapter]


@pytest.mark.long
def test_exact_match_counts_the_answers_that_are_given_exactly(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "aaaa.jsonl"
    row = json.dumps({"prompt": "p", "response": "aaaa"}) + "\n"
    data.write_text(row * 8)
    learnt = ("--data", str(data), "--set", "data.eval_path=", "--set", "train.max_steps=30")
    fast = ("--set", "train.learning_rate=0.01", "--set", "train.warmup_steps=0")
    with ended(airlock(*SHORT, *learnt, *fast)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    other = tmp_path / "half.jsonl"
    other.write_text(row + json.dumps({"prompt": "p", "response": "bb"}) + "\n")
    examples = tmp_path / "examples.jsonl"
    words = ("evaluate", str(run_folder(environ).path), str(data), f"half={other}", "--json")
    with ended(airlock(*words, "--examples", str(examples))) as process:
        code, out, err = finish(process)
    assert code == 0, err
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
