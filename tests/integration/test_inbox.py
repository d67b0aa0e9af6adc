"""The inbox with the real start.sh: dropped files become models, and a stop loses nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from inbox.jobs import jobs_in
from rundir.paths import ROOT
from tests.inbox.serving import Served, serving
from tests.running import as_options, wait_for

_QUICK_TRAINING = (
    *as_options(
        "launch.admit=open",
        "train.max_steps=4",
        "train.log_every_steps=1",
        "train.eval_generate=false",
        "data.max_eval_samples=4",
        "train.global_batch_size=8",
    ),
    *("--set", "train.checkpoint_every_steps=2", "--num-gpus", "1"),
)
_LONG_ENOUGH_S = 600.0


@pytest.fixture
def real(environ: dict[str, str], tmp_path: Path) -> Iterator[Served]:
    """Yield an inbox whose trainings are real ones, of few steps."""
    with serving(
        tmp_path / "folder", environ | {"AIRLOCK_PYTHON": sys.executable}, "not started"
    ) as served:
        served.clone = ROOT
        yield served


def drop(served: Served, name: str) -> None:
    """Drop questions of its own: `name` stands in each."""
    lines = [
        json.dumps({"prompt": f"{name} {number}?", "response": str(number)}) for number in range(40)
    ]
    served.drop(f"{name}.jsonl", "\n".join(lines))


def ended_as(served: Served, **states: str) -> None:
    def is_so() -> bool:
        found = {name.partition(".")[0]: state for name, state in served.states().items()}
        return all(found.get(name) == state for name, state in states.items())

    wait_for(is_so, why=f"{states}: {served.log()}", timeout_s=_LONG_ENOUGH_S)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_files_become_models_one_from_the_other(real: Served) -> None:
    drop(real, "first")
    real.start(*_QUICK_TRAINING)
    ended_as(real, first="done")
    drop(real, "second")
    (real.layout.inbox / "bad.jsonl").write_bytes(b'{"prompt": "\xe4\xf6", "response": "\xff"}\n')
    ended_as(real, first="done", second="done", bad="failed")
    first, second = real.verdict("first.jsonl"), real.verdict("second.jsonl")
    command = (Path(second["run"]) / "command.txt").read_text()
    assert "--set model.path=" in command
    assert (Path(first["run"]) / "model/config.json").exists()
    assert (real.layout.models / "current").exists()
    bad = real.verdict("bad.jsonl")
    assert bad["attempts"] == 1
    assert "UTF-8" in bad["reason"], bad


@pytest.mark.timeout(1500)
def test_stop_saves_and_the_next_start_goes_on(real: Served) -> None:
    long = as_options("train.max_steps=100000", "train.checkpoint_every_steps=1000")
    drop(real, "long")
    real.start(*_QUICK_TRAINING, *long)
    wait_for(lambda: real.status()["current_step"], why="no step", timeout_s=_LONG_ENOUGH_S)
    assert "stopped" in real.ask("stop").stdout
    assert real.processes() == []
    job = jobs_in(real.layout.processing)[0]
    assert (job.attempts[-1].exit_code, job.num_failures) == (20, 0)
    real.start(*_QUICK_TRAINING)
    wait_for(lambda: "--resume" in real.log(), why="not resumed", timeout_s=60)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_line_of_100_megabytes_has_its_verdict(real: Served) -> None:
    row = {"prompt": "?", "response": "x" * (100 << 20)}
    drop(real, "good")
    real.drop("huge.jsonl", json.dumps(row))
    real.start(*_QUICK_TRAINING, "--attempts", "1")
    assert real.process is not None
    ended_as(real, good="done", huge="failed")
    assert real.verdict("huge.jsonl")["reason"]
    assert psutil.Process(real.process.pid).memory_info().rss < 60 << 20
