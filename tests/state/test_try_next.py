"""After a failure by memory or a hang, the command that was typed is offered with changes."""

from __future__ import annotations

import copy
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.commands import run as run_command
from launch.config.resolve import resolve
from rundir.config_file import config_text
from rundir.errors import ExitCode
from rundir.paths import RunDir
from state.blame import Blame, Failure
from state.run_state import RunState, new_state
from state.try_next import tries_after, tries_lines

RUN = copy.copy(run_command.run)  # click keeps the first context's help option in a command
_TYPED = "NUM_GPUS=2 ./start.sh tiny --set data.max_seq_length=256 --data 'a b.jsonl'"


def failed(
    folder: Path, code: ExitCode, title: str = "was killed", typed: str = _TYPED, **launch: Any
) -> tuple[RunDir, RunState]:
    """Return a run that has failed with `code`, and its state."""
    run = RunDir(folder)
    settings = ["data.max_seq_length=256", "train.micro_batch_size=8", "data.path=a b.jsonl"]
    settings.append("data.eval_path=held.jsonl")
    config, sources = resolve("tiny", settings, {})
    config = replace(config, launch=replace(config.launch, **{"num_ranks": 2, **launch}))
    run.config.write_text(config_text(config, sources))
    run.command.write_text(f"{typed}\n\n# with torch's own:\ntorchrun\n")
    state = new_state(run.run_id, "tiny", 2)
    state.failures.append(Failure(1, 0.0, title, Blame.ROOT, code))
    state.end(code)
    return run, state


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def test_by_memory_smaller_batches_come_first_and_what_was_typed_is_kept(tmp_path: Path) -> None:
    found = tries_after(*failed(tmp_path, ExitCode.OUT_OF_MEMORY))
    assert all(one["command"].startswith(f"{_TYPED} ") for one in found[:-1])
    added = [words_of(one["command"].removeprefix(_TYPED)) for one in found[:-1]]
    assert added[0] == ["--set", "train.micro_batch_size=4"]
    assert added[1] == ["--set", "model.gradient_checkpointing=true"]
    assert added[2] == ["--set", "data.max_seq_length=128", "--set", "data.on_long_row=truncate"]
    assert added[3] == ["--set", "train.evaluate=false"]
    assert added[4] == ["--num-gpus", "1"]
    assert words_of(found[-1]["command"])[1:] == [
        "check", "--climb", "tiny", "--data", str(Path("a b.jsonl").absolute()), "--num-gpus", "2",
    ]  # fmt: skip


def test_by_a_hang_one_rank_and_no_evaluation_come_first(tmp_path: Path) -> None:
    lines = tries_lines(*failed(tmp_path, ExitCode.HANG))
    assert lines[0] == "to try next, each by itself:"
    assert "--num-gpus 1   # one rank" in lines[1]
    assert "train.evaluate=false" in lines[2]
    assert "data.max_samples=100" in lines[3]
    assert any("launch.device=cpu" in line for line in lines)


def test_each_command_can_be_typed_and_its_own_settings_win(tmp_path: Path) -> None:
    offered = [
        one["command"]
        for code in (ExitCode.OUT_OF_MEMORY, ExitCode.HANG)
        for one in tries_after(*failed(tmp_path, code))[:-1]
    ]
    configs = []
    for command in offered:
        words = words_of(command)
        context = RUN.make_context("run", words[words.index("./start.sh") + 1 :])
        configs.append(resolve("tiny", context.params["settings"], {})[0])
    assert (configs[2].data.max_seq_length, configs[2].data.on_long_row) == (128, "truncate")


@pytest.mark.parametrize("title", ["CUDA out of memory. Tried", "std::bad_alloc", "MemoryError"])
def test_an_error_that_speaks_of_memory_counts_whatever_its_exit_code(
    tmp_path: Path, title: str
) -> None:
    assert tries_after(*failed(tmp_path, ExitCode.RANK_FAILED, title))


def test_nothing_is_offered_for_other_failures_and_no_other_data_to_a_resumed_run(
    tmp_path: Path,
) -> None:
    assert tries_after(*failed(tmp_path, ExitCode.RANK_FAILED, "KeyError: 'x'")) == []
    typed = "./start.sh tiny --resume runs/x"
    found = tries_after(*failed(tmp_path, ExitCode.HANG, typed=typed))
    assert found
    assert not any("data." in one["command"] for one in found[:-1])


def test_a_run_of_one_process_is_offered_no_ranks(tmp_path: Path) -> None:
    typed = "python -m train tiny"
    found = tries_after(*failed(tmp_path, ExitCode.OUT_OF_MEMORY, typed=typed, num_ranks=1))
    assert all(one["command"].startswith(f"{typed} --set ") for one in found)


def test_a_folder_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    run, state = failed(tmp_path, ExitCode.HANG)
    run.config.unlink()
    assert tries_lines(run, state) == []
