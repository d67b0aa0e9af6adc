"""The medium rung: one device trains on 100 examples, and obstacles are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.medium import judge_loss
from tests.diagnosing import diagnose
from tests.running import hooked, limit_s

pytestmark = pytest.mark.runs  # trains


def test_the_loss_falls_from_the_first_pass_to_the_second(on_cpu: dict[str, str]) -> None:
    ended = diagnose("medium", env=on_cpu)
    assert ended.code == 0, ended.output
    figures = ended.finding("loss")["figures"]
    assert len(figures["losses"]) == 10
    assert figures["second_pass"] < figures["first_pass"]
    assert ended.finding("checkpoint")["figures"]["tokens_per_s"] > 0
    assert list(Path(on_cpu["AIRLOCK_RUNS_DIR"]).iterdir()) == []  # it has left no run


@pytest.mark.long
def test_a_training_that_hangs_is_red_with_its_stacks(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    body = "import time\nmodule.Trainer.update = lambda *_: time.sleep(3600)"
    env = on_cpu | hooked(on_cpu, tmp_path, "train.step.loop", body)
    ended = diagnose("medium", "--timeout-s", str(limit_s(10)), env=env)
    assert ended.code == 4
    text = ended.finding("run")["text"]
    assert f"it was not done after {limit_s(10)} s: rank 0" in text
    assert "sitecustomize" in text


@pytest.mark.parametrize(
    ("losses", "ok", "warns"),
    [([2, 2, 1, 1], True, False), ([2, 2, 2, 2], True, True), ([2, 2, 3, 3], False, True)],
)
def test_a_loss_that_rises_is_red_and_one_that_stays_is_a_warning(
    losses: list[float], ok: bool, warns: bool
) -> None:
    found = judge_loss(losses, 2)
    assert (found.ok, bool(found.warning)) == (ok, warns)
    assert bool(found.do) == warns


@pytest.mark.gpu
def test_the_first_gpu_trains_on_100_examples(environ: dict[str, str]) -> None:
    ended = diagnose("medium", "--set", "train.method=lora", env=environ)
    assert ended.code == 0, ended.output
    assert ended.finding("checkpoint")["figures"]["gpu_peak_bytes"] > 0
