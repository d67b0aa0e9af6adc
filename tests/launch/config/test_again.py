"""Settings of a run for another one: to do it again, from its folder or from its exported model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.again import data_changes, differences, profile_of, run_to_repeat
from launch.config.job import resolve_job
from launch.config.request import Request
from launch.config.resolve import resolve
from rundir.card.model_card import write_card
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from tests.launch.run_folders import trained_run

COMMIT = "97e1e76335b7017d8f67c08a19d103c0504298c9"
SETTINGS = ("model.path=ann/base", "train.seed=7", "train.learning_rate=0.5")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return trained_run(tmp_path / "run", *SETTINGS, base=tmp_path / "snapshots" / COMMIT)


def again(name: Path, *settings: str) -> Request:
    return Request(profile="tiny", again=str(name), settings=settings)


def test_the_settings_are_that_runs_and_so_is_the_commit_of_its_base(run: RunDir) -> None:
    config, sources = resolve_job(again(run.path), {})
    assert (config.train.seed, config.train.learning_rate) == (7, 0.5)
    assert config.model.revision == COMMIT  # main may have moved since
    assert sources["train.seed"] == "run run"
    other, _ = resolve_job(again(run.path, "model.path=ann/other", "train.seed=8"), {})
    assert (other.model.revision, other.train.seed) == ("", 8)


def test_the_folder_of_an_exported_model_is_enough(run: RunDir, tmp_path: Path) -> None:
    model = tmp_path / "downloaded"
    model.mkdir()
    write_card(run, model)
    shutil.rmtree(run.path)
    assert profile_of(str(model)) == "tiny"
    config, _ = resolve_job(again(model), {})
    assert (config.train.seed, config.model.revision) == (7, COMMIT)


def test_other_data_are_told(run: RunDir, tmp_path: Path) -> None:
    same = read_prepared(run)
    assert differences(run, same) == f"the data are those of {run.path}"
    same.train.made_of["files"] = "of today"
    assert "THE DATA ARE NOT THOSE OF" in (differences(run, same) or "")
    assert "their files have changed" in (differences(run, same) or "")
    assert "nothing is compared" in (differences(RunDir(tmp_path / "none"), same) or "")
    with pytest.raises(UserError, match="no run or exported model"):
        run_to_repeat(str(tmp_path))


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        ("ab:1 cd:0.3", "ab:1 cd:0.5", "the weights of their files were 1 and 0.3, are 1 and 0.5"),
        ("ab", "ab:2", "the weights of their files were 1, are 2"),
        ("ab:1 cd:0.3", "ab:1 ce:0.3", "their files have changed"),
        ("ab:1 cd:0.3", "ab:0.3", "their files have changed"),
        ("ab:1 cd:0.3", "ab:1 cd:0.3", None),
    ],
)
def test_another_weight_of_a_file_is_not_called_another_file(
    run: RunDir, was: str, now: str, change: str | None
) -> None:
    train = replace(read_prepared(run).train, num_tokens=7)
    before, after = (replace(train, made_of={"files": files}) for files in (was, now))
    assert list(data_changes(before, after)) == ([] if change is None else [change])
    (tokenised_otherwise,) = data_changes(before, replace(before, num_tokens=6))
    assert "of 7 tokens, and are" in tokenised_otherwise
    assert "another version tokenised them" in tokenised_otherwise


@pytest.mark.parametrize("profile", ["14b", "32b"])
def test_a_run_of_an_earlier_version_goes_on_without_holding_rows_out(
    tmp_path: Path, profile: str
) -> None:
    config, sources = resolve(profile, ("data.eval_fraction=0", "train.eval_every_steps=0"), {})
    lines = config_text(config, sources).splitlines()
    new = ("export =", "max_eval_samples =")  # settings that it did not know
    before = RunDir(tmp_path / "old")
    before.path.mkdir()
    before.config.write_text("\n".join(line for line in lines if not line.startswith(new)) + "\n")
    resumed, _ = resolve(profile, (), {}, before)
    assert (resumed.data.eval_fraction, resumed.data.max_eval_samples) == (0, 0)
    assert resumed.train.eval_every_steps == 0
