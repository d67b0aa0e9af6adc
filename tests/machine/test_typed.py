"""Advice repeats what was typed, by the script that was typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from launch.config.request import PLAN, RUN, Request
from machine import typed
from tests.conftest import ROOT
from tests.running import Typed, here

LAUNCH = str(ROOT / "launch/__main__.py")
REQUEST = Request(profile="14b", data="my data.jsonl", settings=("train.lora_rank=8",))
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in typed.variables():
        monkeypatch.delenv(name)


@pytest.mark.parametrize("script", ["start.sh", "start_single.sh", "start_4gpu.sh"])
def test_a_changed_command_is_of_the_script_that_was_typed_and_keeps_the_data(
    monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", f"./{script}")
    command = REQUEST.command(RUN, {"train.lora_rank": "4"})
    expected = [f"./{script}", "14b", "--data", "my data.jsonl", "--set", "train.lora_rank=4"]
    assert shlex.split(command) == expected


def test_a_number_of_ranks_in_the_environment_is_kept_unless_it_is_what_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", "./start.sh")
    monkeypatch.setenv("NUM_GPUS", "2")
    assert REQUEST.command(RUN, {}).startswith("NUM_GPUS=2 ./start.sh 14b ")
    assert REQUEST.command(RUN, {}, num_gpus=8).startswith("./start.sh 14b --num-gpus 8 ")


def test_what_start_single_presets_is_not_repeated_and_what_differs_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", str(ROOT / "start_single.sh"))
    monkeypatch.setenv("RUN_IMPORT_TEST", "1")
    monkeypatch.setenv("RUN_SINGLE_GPU_TEST", "0")
    assert typed.variables() == {"RUN_SINGLE_GPU_TEST": "0"}


def test_the_other_script_is_named_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", str(ROOT / "airlock"))
    assert typed.start_program() == here("start.sh")
    assert REQUEST.command(PLAN, {}).startswith(f"{here('airlock')} plan 14b ")
    link = tmp_path / "begin"  # whose folder has no console command
    link.symlink_to(ROOT / "start.sh")
    monkeypatch.setenv("AIRLOCK_SCRIPT", str(link))
    assert typed.start_program() == str(link)
    assert typed.console_program() == here("airlock")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run", "tiny", "--num-gpus", "99", "--data", "a b"], "./start.sh tiny --data 'a b'"),
        (["run", "--num-gpus=99", "--force"], "./start.sh --force"),
        (["plan", "tiny"], "./airlock plan tiny"),
    ],
)
def test_a_repeated_command_has_all_words_but_those_that_a_variable_replaces(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], expected: str
) -> None:
    monkeypatch.delenv("AIRLOCK_SCRIPT", raising=False)
    monkeypatch.setattr("sys.argv", [LAUNCH, *argv])
    assert typed.again("tiny", {"NUM_GPUS": "64"}) == f"NUM_GPUS=64 {expected}"


def test_ranks_that_cannot_be_are_answered_with_all_that_was_typed(typed: Typed) -> None:
    env = {"AIRLOCK_SCRIPT": str(ROOT / "start_single.sh"), "NUM_GPUS": "99"}
    args = ("run", "tiny", "--data", "my data.jsonl")
    code, _, err = typed(*args, env=env | NO_GPU)
    assert code == 2
    again = f"NUM_GPUS=64 {here('start_single.sh')} tiny --data 'my data.jsonl'"
    assert again in err.replace("CUDA_VISIBLE_DEVICES='' ", "")


@pytest.mark.parametrize(
    "command", ["attach", "try", "pause", "stop", "track", "run tiny --resume"]
)
def test_the_folder_of_all_runs_is_listed_though_its_path_has_a_space(
    typed: Typed, tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "new user/runs"
    _, _, err = typed(*command.split(), "nosuch", env={"AIRLOCK_RUNS_DIR": str(folder)})
    assert shlex.split(err.rpartition("ls ")[2], comments=True) == [str(folder)]


def test_a_package_is_installed_by_a_python_whose_path_has_a_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/new user/bin/python")
    words = shlex.split(typed.pip_install("py-spy>=0.4"))
    assert words == ["/new user/bin/python", "-m", "pip", "install", "py-spy>=0.4"]
