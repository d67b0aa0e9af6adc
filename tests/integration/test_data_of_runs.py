"""Whole runs and commands on user data: mixed, resumed, changed, shown, prepared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import RunDir
from tests.running import (
    SHORT,
    Typed,
    events_of,
    finish,
    run_folder,
)

Start = Callable[..., Any]
# Steps that are the same however many are to come.
_EVEN = (
    *("--set", "train.schedule=constant", "--set", "train.warmup_steps=0"),
    *("--set", "train.checkpoint_every_steps=2", "--set", "data.eval_path="),
)


def write(path: Path, prefix: str, count: int) -> Path:
    rows = ({"prompt": f"{prefix} {i} + 1", "response": f"{i + 1}"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def losses(run: RunDir) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events_of(run, "metric", "train")}


@pytest.fixture
def mixture(tmp_path: Path) -> tuple[str, ...]:
    """Return two files with a space in their path, one of them at half its weight."""
    folder = tmp_path / "my data"
    folder.mkdir()
    first, second = write(folder / "a.jsonl", "a", 13), write(folder / "b.jsonl", "b", 8)
    return ("--data", str(first), "--data", f"{second}:0.5")


@pytest.mark.long
def test_a_mixture_is_gone_on_with_to_the_last_bit_and_other_data_are_refused(
    airlock: Start, environ: dict[str, str], mixture: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = finish(airlock(*SHORT, *_EVEN, *mixture, "--set", "train.max_steps=6"))
    assert code == 0, err
    assert "an epoch takes 13 samples of a.jsonl (1 of 13)" in out
    assert "an epoch takes 4 samples of b.jsonl (0.5 of 8)" in out
    whole = losses(run_folder(environ))
    code, _, err = finish(airlock(*SHORT, *_EVEN, *mixture))
    assert code == 0, err
    first = run_folder(environ)
    again = ("run", "tiny", "--resume", first.run_id, "--set", "train.max_steps=6")
    code, _, err = finish(airlock(*again))
    assert code == 0, err
    resumed = losses(run_folder(environ))
    assert losses(first) | resumed == whole
    assert sorted(resumed) == [5, 6]

    other_weight = (*mixture[:-1], mixture[-1].replace(":0.5", ":0.25"))
    code, _, err = finish(airlock(*again, *other_weight))
    assert code == 5
    assert "the weights of their files were 1 and 0.5, are 1 and 0.25" in err
    with (tmp_path / "my data" / "b.jsonl").open("a") as file:
        file.write('{"prompt": "p", "response": "r"}\n')
    code, _, err = finish(airlock(*again))
    assert code == 5
    assert f"the data are not those of run {first.run_id}" in err
    assert "their files have changed" in err
    assert "--force" in err
    code, out, err = finish(airlock(*again, "--force"))
    assert code == 0, err
    assert "some rows may come twice, others never" in out
    code, _, err = finish(airlock(*again, "--set", "data.max_seq_length=64"))
    assert code == 5
    assert "data.max_seq_length was 128, is 64" in err


@pytest.mark.long
def test_a_run_that_is_gone_on_with_keeps_the_rows_that_were_held_out(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    data = write(tmp_path / "a.jsonl", "a", 60)
    settings = ("--data", str(data), "--set", "data.eval_fraction=0.2", "--set", "train.seed=5")
    every = ("--set", "train.eval_every_steps=2", "--set", "train.checkpoint_every_steps=2")
    code, _, err = finish(airlock(*SHORT, *settings, *every, "--set", "train.max_steps=2"))
    assert code == 0, err
    first = run_folder(environ)
    again = ("run", "tiny", "--resume", first.run_id, "--set", "train.max_steps=4")
    code, _, err = finish(airlock(*again))
    assert code == 0, err
    before, after = (
        json.loads((run.path / "prepared.json").read_text("utf-8"))["evaluation"]
        for run in (first, run_folder(environ))
    )
    assert before == after
    code, _, err = finish(airlock(*again, "--set", "train.seed=6"))
    assert code == 5
    assert "train.seed was 5, is 6" in err


def test_prepared_on_a_machine_without_a_gpu_a_run_starts_at_once_and_offline(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    data = write(tmp_path / "a.jsonl", "a", 40)
    needs = ("--set", "launch.needs_gpu=true", "--data", str(data))
    env = {"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")}
    code, out, err = finish(airlock("run", "tiny", "--prepare-only", *needs, env=env))
    assert code == 0, err
    assert "40 samples" in out
    command = re.search(r"HF_HUB_OFFLINE=1 \./start\.sh (.*)", out)
    assert command is not None
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists() or not list(
        Path(environ["AIRLOCK_RUNS_DIR"]).iterdir()
    )
    prepared = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert prepared
    offline = env | {"HF_HUB_OFFLINE": "1"}
    code, _, err = finish(airlock(*SHORT, "--data", str(data), env=offline))
    assert code == 0, err
    now = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert now == prepared


def test_data_are_shown_without_training(
    typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    rows = [{"prompt": "p" * (i % 50), "response": "r", "id": i} for i in range(1, 120)]
    rows += [{"prompt": "p", "response": "r", "id": 0}] * 2
    rows += [{"prompt": "long" * 100, "response": "r", "id": 0}, {"prompt": "p", "id": 0}]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, out, err = typed("data", str(file), f"{file}:0.5", "--profile", "tiny")
    assert code == 5, err  # as a run would end
    assert f"a run would stop at {file}:50: 3 bad rows" in err
    assert "data.on_bad_row=skip leaves" in err
    for words in (
        "jsonl",
        "prompts in `prompt`, responses in `response`",
        "not used: id",
        "rows are the same as an earlier one",
        "1 left out: more than 128 tokens",
        "3 bad rows",
        f" {file}:123: has no column `response`; its columns: id, prompt",
        f"404 tokens: {file}:122",
        "<|user|>p<|assistant|>[[r<|end|>]]",
        "█",
        "(0.5 of ",
    ):
        assert words in out, words
    skip = ("--set", "data.on_bad_row=skip")
    code, out, err = typed("data", str(file), "--profile", "tiny", "--json", *skip)
    assert code == 0, err
    (found,) = json.loads(out.splitlines()[-1])["files"]
    assert (found["num_rows"], found["num_bad"], found["num_too_long"]) == (123, 3, 1)
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists() or not list(
        Path(environ["AIRLOCK_RUNS_DIR"]).iterdir()
    )


def test_of_data_that_are_shown_one_is_one_and_none_is_not_well(
    typed: Typed, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "p", "response": "r"}\n', encoding="utf-8")
    code, out, err = typed("data", str(file), "--profile", "tiny")
    assert code == 0, err
    assert "1 row, 1 sample\n" in out
    file.write_text('{"prompt": "p", "response": ""}\n', encoding="utf-8")
    skip = ("--set", "data.on_bad_row=skip")
    code, out, err = typed("data", str(file), "--profile", "tiny", *skip)
    assert code == 5, out
    assert "1 bad row\n" in out
    assert "all rows are bad" in err
