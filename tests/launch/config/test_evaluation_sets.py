"""Named sets of held-out data: of a profile, by --set, and on the command line of `evaluate`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from launch.config.evaluation_sets import check_evaluations
from launch.config.resolve import resolve
from launch.config.scoring import named_sets, scoring_config
from rundir.config import EvaluationConfig
from rundir.config_file import config_text, read_config
from rundir.errors import UserError

PROFILE = """
[evaluation.hard]
path = "hard.jsonl"
max_samples = 5

[evaluation.other-words]
path = "hf:owner/name"
columns = "text"
"""


def profile(folder: Path, text: str = PROFILE) -> str:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_profile_names_sets_beside_it_and_an_option_adds_one_or_changes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, sources = resolve(profile(tmp_path), (), {})
    assert config.evaluation == {
        "hard": EvaluationConfig(path=str(tmp_path / "hard.jsonl"), max_samples=5),
        "other-words": EvaluationConfig(path="hf:owner/name", columns="text"),
    }
    file = tmp_path / "config.toml"
    file.write_text(config_text(config, sources), encoding="utf-8")
    assert read_config(file) == config
    monkeypatch.chdir(tmp_path)
    settings = ("evaluation.hard.max_samples=7", "evaluation.new.path=new.jsonl")
    config, _ = resolve(profile(tmp_path), settings, {})
    assert config.evaluation["hard"].max_samples == 7
    assert config.evaluation["new"].path == str(tmp_path / "new.jsonl")


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("evaluation.hard.size=7", "one of path, columns, max_samples"),
        ("evaluation.hard.max_samples=many", "not a whole number"),
        ("evaluation.hard.max_samples=-1", "the least is 0"),
        ("evaluation.new.columns=text", "--set evaluation.new.path=FILE"),
        ("evaluation.a b.path=x", "'a b'"),
    ],
)
def test_a_set_that_cannot_be_is_refused(tmp_path: Path, setting: str, part: str) -> None:
    with pytest.raises(UserError) as raised:
        resolve(profile(tmp_path), (setting,), {})
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ((), "train.eval_every_steps=50"),
        (("train.eval_every_steps=5", "train.evaluate=false"), "train.evaluate=true"),
        (("train.eval_every_steps=5", "data.eval_path="), "data.eval_fraction=0.05"),
    ],
)
def test_early_stopping_without_evaluations_is_refused(
    settings: tuple[str, ...], part: str
) -> None:
    config, _ = resolve("tiny", ("train.early_stop_evaluations=3", *settings), {})
    with pytest.raises(UserError) as raised:
        check_evaluations(config)
    assert part in raised.value.do


def test_data_are_named_by_their_files_or_as_typed(tmp_path: Path) -> None:
    made = named_sets([str(tmp_path / "a.jsonl"), "b=c.jsonl", "hf:owner/name"], "", 3)
    assert list(made) == ["a", "b", "name"]
    assert made["b"].path == str(Path.cwd() / "c.jsonl")
    assert {one_set.max_samples for one_set in made.values()} == {3}
    with pytest.raises(UserError) as raised:
        named_sets(["x/a.jsonl", "y/a.jsonl"], "", 0)
    assert raised.value.do.endswith(f"a-2={shlex.quote(str(Path.cwd() / 'y/a.jsonl'))}")


def test_a_folder_is_evaluated_in_its_own_dtype_and_length_if_it_holds_a_model(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="neither a run, a model nor adapters"):
        scoring_config(str(tmp_path), (), {})
    described = {"dtype": "float32", "max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(described))
    config, _ = scoring_config(str(tmp_path), (), {})
    assert (config.model.path, config.model.dtype) == (str(tmp_path), "float32")
    assert config.data.max_seq_length == 256
    assert config.train.method == "full"
