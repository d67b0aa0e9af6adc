"""Questions: the key includes everything that the answer depends on, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.resolve import resolve
from launch.files.model_folder import fetched_model_folder
from launch.plan.question import question_of
from launch.plan.target import with_ranks
from rundir.config import RunConfig
from rundir.errors import UserError


def config_of(profile: str, *settings: str, num_ranks: int = 8) -> RunConfig:
    return with_ranks(resolve(profile, settings, {})[0], num_ranks)


def key_of(*settings: str, num_ranks: int = 8) -> str:
    return question_of(config_of("32b", *settings, num_ranks=num_ranks), "cuda").key


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of the Hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def write_model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen2", "hidden_size": 8} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "setting",
    [
        "model.dtype=float32",
        "model.attention=eager",
        "model.gradient_checkpointing=false",
        "data.max_seq_length=2048",
        "train.method=full",
        "train.lora_rank=8",
        "train.micro_batch_size=2",
        "train.global_batch_size=8",
    ],
)
def test_what_memory_depends_on_is_another_question(setting: str) -> None:
    assert key_of(setting) != key_of()


@pytest.mark.parametrize(
    "setting",
    [
        "train.learning_rate=1",
        "train.max_steps=7",
        "train.seed=3",
        "launch.start=cold",
        "data.path=/some/file",
        "launch.admit=serial",
        "train.global_batch_size=128",
    ],
)
def test_what_memory_does_not_depend_on_is_the_same_question(setting: str) -> None:
    assert key_of(setting) == key_of()


def test_one_rank_alone_is_another_question_and_more_than_two_are_not() -> None:
    assert key_of(num_ranks=1) != key_of(num_ranks=2) == key_of(num_ranks=4)


def test_the_device_is_part_of_the_question() -> None:
    config = config_of("tiny")
    assert question_of(config, "cuda").key != question_of(config, "cpu").key


def test_a_micro_batch_is_never_larger_than_a_ranks_share() -> None:
    asked = question_of(config_of("tiny", "train.micro_batch_size=64", num_ranks=2), "cpu").config
    assert asked.train.micro_batch_size == 32
    share = asked.train.global_batch_size // asked.launch.num_ranks
    assert share == 32


def test_the_shape_is_that_of_the_folder_and_the_key_that_of_its_content(tmp_path: Path) -> None:
    one, same = write_model(tmp_path / "one"), write_model(tmp_path / "same")
    other = write_model(tmp_path / "other", hidden_size=16)
    keys = [key_of(f"model.path={folder}") for folder in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]
    asked = question_of(config_of("32b", f"model.path={one}"), "cuda").config
    assert (asked.model.path, asked.architecture) == (str(one), {})
    (one / "modeling_own.py").write_text("code of its own")
    assert key_of(f"model.path={one}") != keys[0]


def test_the_config_in_the_hubs_cache_is_used(hub: Path) -> None:
    folder = hub / "models--Qwen--Qwen2.5-32B"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    config = config_of("32b")
    assert fetched_model_folder(config) is None
    snapshot = write_model(folder / "snapshots" / "abc")
    assert fetched_model_folder(config) == snapshot
    assert question_of(config, "cuda").config.architecture == {}


def test_it_is_the_revision_that_is_asked_for(hub: Path) -> None:
    snapshots = hub / "models--Qwen--Qwen2.5-32B" / "snapshots"
    write_model(snapshots / "abc", hidden_size=8)
    config = config_of("32b", "model.revision=abc")
    assert fetched_model_folder(config) == snapshots / "abc"
    assert fetched_model_folder(config_of("32b", "model.revision=main")) is None
    assert question_of(config, "cuda").key != question_of(config_of("32b"), "cuda").key


def test_without_a_file_of_it_the_profiles_own_architecture_serves() -> None:
    assert question_of(config_of("32b"), "cuda").config.architecture["num_hidden_layers"] == 64


def test_another_model_than_the_profiles_is_not_taken_to_have_its_shape() -> None:
    with pytest.raises(UserError, match="shape of Some/Model is not known") as caught:
        question_of(config_of("32b", "model.path=Some/Model"), "cuda")
    assert "hf download Some/Model config.json" in caught.value.do


def test_a_model_that_was_fetched_is_looked_for_where_it_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "fetched")
    config = replace(config_of("32b", "model.path=Some/Model"), architecture={})
    assert question_of(config, "cuda", folder).config.model.path == str(folder)


def test_a_profile_without_a_model_is_named_as_that() -> None:
    with pytest.raises(UserError, match=r"^mine has no model: model\.path is empty") as caught:
        question_of(with_ranks(RunConfig(profile="mine"), 1), "cuda")
    assert "--set model.path=OWNER/NAME" in caught.value.do
