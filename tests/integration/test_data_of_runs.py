"""Whole runs and commands on user data: mixed, resumed, changed, shown, prepared."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.running import SHORT, User, as_options, events_of

# Steps that are the same however many are to come.
_EVEN = (
    *as_options(
        "train.schedule=constant",
        "train.warmup_steps=0",
        "train.checkpoint_every_steps=2",
        "data.eval_path=",
    ),
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
    user: User, mixture: tuple[str, ...]
) -> None:
    out = user.output_of(*SHORT, *_EVEN, *mixture, "--set", "train.max_steps=6")
    assert "an epoch takes 13 samples of a.jsonl (1 of 13)" in out
    assert "an epoch takes 4 samples of b.jsonl (0.5 of 8)" in out
    whole = losses(user.run())
    user.output_of(*SHORT, *_EVEN, *mixture)
    first = user.run()
    again = ("run", "tiny", "--resume", first.run_id, "--set", "train.max_steps=6")
    user.output_of(*again)
    resumed = losses(user.run())
    assert losses(first) | resumed == whole
    assert sorted(resumed) == [5, 6]

    other_weight = (*mixture[:-1], mixture[-1].replace(":0.5", ":0.25"))
    err = user.error_of(*again, *other_weight, code=5)
    assert "the weights of their files were 1 and 0.5, are 1 and 0.25" in err
    with (user.folder / "my data" / "b.jsonl").open("a") as file:
        file.write('{"prompt": "p", "response": "r"}\n')
    err = user.error_of(*again, code=5)
    assert f"the data are not those of run {first.run_id}" in err
    assert "their files have changed" in err
    assert "--force" in err
    out = user.output_of(*again, "--force")
    assert "some rows may come twice, others never" in out
    err = user.error_of(*again, "--set", "data.max_seq_length=64", code=5)
    assert "data.max_seq_length was 128, is 64" in err


@pytest.mark.long
def test_a_run_that_is_gone_on_with_keeps_the_rows_that_were_held_out(user: User) -> None:
    data = write(user.folder / "a.jsonl", "a", 60)
    settings = ("--data", str(data), "--set", "data.eval_fraction=0.2", "--set", "train.seed=5")
    every = as_options("train.eval_every_steps=2", "train.checkpoint_every_steps=2")
    user.output_of(*SHORT, *settings, *every, "--set", "train.max_steps=2")
    first = user.run()
    again = ("run", "tiny", "--resume", first.run_id, "--set", "train.max_steps=4")
    user.output_of(*again)
    before, after = (
        json.loads((run.path / "prepared.json").read_text("utf-8"))["evaluation"]
        for run in (first, user.run())
    )
    assert before == after
    err = user.error_of(*again, "--set", "train.seed=6", code=5)
    assert "train.seed was 5, is 6" in err


def test_prepared_on_a_machine_without_a_gpu_a_run_starts_at_once_and_offline(user: User) -> None:
    data = write(user.folder / "a.jsonl", "a", 40)
    needs = ("--set", "launch.needs_gpu=true", "--data", str(data))
    env = {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")}
    out = user.output_of("run", "tiny", "--prepare-only", *needs, env=env)
    assert "40 samples" in out
    command = re.search(r"HF_HUB_OFFLINE=1 \./start\.sh (.*)", out)
    assert command is not None
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists() or not list(
        Path(user.environ["AIRLOCK_RUNS_DIR"]).iterdir()
    )
    prepared = {path: path.stat().st_mtime_ns for path in (user.folder / "cache").rglob("*.arrow")}
    assert prepared
    offline = env | {"HF_HUB_OFFLINE": "1"}
    user.output_of(*SHORT, "--data", str(data), env=offline)
    now = {path: path.stat().st_mtime_ns for path in (user.folder / "cache").rglob("*.arrow")}
    assert now == prepared


def test_data_are_shown_without_training(user: User) -> None:
    rows = [{"prompt": "p" * (i % 50), "response": "r", "id": i} for i in range(1, 120)]
    rows += [{"prompt": "p", "response": "r", "id": 0}] * 2
    rows += [{"prompt": "long" * 100, "response": "r", "id": 0}, {"prompt": "p", "id": 0}]
    file = user.folder / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, out, err = user.typed("data", str(file), f"{file}:0.5", "--profile", "tiny")
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
    out = user.typed.output_of("data", str(file), "--profile", "tiny", "--json", *skip)
    (found,) = json.loads(out.splitlines()[-1])["files"]
    assert (found["num_rows"], found["num_bad"], found["num_too_long"]) == (123, 3, 1)
    file.write_text('{"prompt": "p", "response": ""}\n', encoding="utf-8")
    code, _, err = user.typed("data", str(file), "--profile", "tiny", *skip)
    assert (code, "all rows are bad" in err) == (5, True), err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists() or not list(
        Path(user.environ["AIRLOCK_RUNS_DIR"]).iterdir()
    )


def test_a_colleague_gets_the_same_model_from_its_folder(user: User) -> None:
    user.output_of(*SHORT, "--set", "train.seed=5", "--num-gpus", "2")
    first, model = user.run(), user.folder / "model"
    shutil.copytree(first.model, model)
    card = (model / "README.md").read_text("utf-8")
    assert f"./start.sh --again {first.run_id} --num-gpus 2" in card
    out = user.output_of("run", "--again", str(model), "--num-gpus", "2")
    assert f"the data are those of {model}" in out
    second = user.run()
    assert second.path != first.path
    one, other = (run.model / "model.safetensors" for run in (first, second))
    assert one.read_bytes() == other.read_bytes()
    code, _, err = user.finish("run", "14b", "--again", str(model))
    assert (code, "is of the profile tiny, not 14b" in err) == (2, True)
    code, _, err = user.finish("run", "--again", str(model), "--resume", "latest")
    assert (code, "--again starts anew" in err) == (2, True)
