"""The survey of architectures: wrong results are found, and the page shows the results."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from benchmarks.architectures.model_checks import check
from benchmarks.architectures.small_models import causal_architectures
from benchmarks.models import DOCS
from rundir.paths import ROOT

# peft asks transformers for a name that transformers has renamed.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what}")
    for what in (".*gradient_checkpointing", ".*[Uu]nrecognized keys")
]


@pytest.mark.long
def test_a_loss_that_leaves_out_what_the_model_does_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why, cases = check("granite")
    assert (why, {case.verdict for case in cases}) == ("", {"right"})
    assert {case.head for case in cases} == {"own"}
    monkeypatch.setattr("train.step.selftest.head_of", lambda *_: "matrix")
    monkeypatch.setattr("benchmarks.architectures.model_checks.trace", lambda *_: None)  # no plan
    assert {case.verdict for case in check("granite")[1]} == {"wrong"}


@pytest.mark.long
def test_samples_that_see_each_other_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _, cases = check("bloom")
    assert {(case.verdict, case.packs) for case in cases} == {("right", False)}
    monkeypatch.setattr("train.step.try_packing.check_packing", lambda *_, **__: None)
    monkeypatch.setattr("benchmarks.architectures.model_checks.trace", lambda *_: None)  # no plan
    _, cases = check("bloom")
    assert [case.verdict for case in cases if case.dtype == "float32"] == ["wrong", "wrong"]


def test_the_page_has_them_all_and_none_is_wrong() -> None:
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    found = re.search(r"Of (\d+), (\d+) can be .*: (\d+) are right, (\d+) .* (\d+) are wrong", text)
    assert found
    num_known, num_made, num_right, num_refused, num_wrong = map(int, found.groups())
    assert num_known == len(causal_architectures())
    assert (num_right + num_refused, num_wrong) == (num_made, 0)
    assert num_made >= 140


@pytest.mark.long
def test_the_quick_survey_holds_and_prints_one_object_last() -> None:
    command = [sys.executable, "-m", "benchmarks.models", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["holds"] is True
    assert found["ratios"]["num_made"] == 12
