"""User errors end in a line or two, before a run folder is made or a rank runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.running import Typed, User

HAS_GPU = Path("/proc/driver/nvidia/version").exists()

CASES = {
    "a number of ranks that is none": (["run", "tiny"], {"NUM_GPUS": "abc"}, 2, ["'abc'"]),
    "a number of ranks that cannot be": (
        ["run", "tiny", "--num-gpus", "-3"],
        {},
        2,
        ["-3", "--num-gpus"],
    ),
    "data that is not there": (["run", "tiny", "--data", "no.jsonl"], {}, 5, ["no.jsonl", "such"]),
    "a folder without data": (["run", "tiny", "--data", "empty"], {}, 5, ["is a folder without"]),
    "data whose first rows are of another kind": (
        ["run", "tiny", "--data", "rows.jsonl", "--set", "model.path=someone/large"],
        {},
        5,
        ["rows.jsonl:1: the row has none of the columns", "its columns: question"],
    ),
    "a model that may not be fetched": (
        ["run", "tiny", "--set", "model.path=someone/large"],
        {"HF_HUB_OFFLINE": "1", "HF_HOME": "empty"},
        4,
        ["HF_HUB_OFFLINE=1", "hf download"],
    ),
    "a wrong type": (["run", "tiny", "--set", "train.max_steps=few"], {}, 2, ["'few'", "whole"]),
    "a model that is not there": (
        ["run", "tiny", "--set", "model.path=./none"],
        {},
        2,
        ["./none", "model.path"],
    ),
    "a model that is read twice over": (
        ["run", "tiny", "--set", "launch.start=warm", "--set", "launch.load=broadcast"],
        {},
        2,
        ["launch.start=warm and launch.load=broadcast", "--set launch.start=imports"],
    ),
    "a run to resume that is not there": (["run", "tiny", "--resume", "none"], {}, 2, ["'none'"]),
    "a script": (["run", "my_train.py"], {}, 2, ["my_train.py"]),
    "a model cut short": (
        ["run", "tiny", "--set", "model.path=cut"],
        {},
        4,
        ["its header would have 70,000 bytes, the file has 108", "cut/model.safetensors"],
    ),
    "a pipe as data": (["run", "tiny", "--data", "pipe"], {}, 5, ["not a regular file"]),
    "a gate that others may write to": (
        ["run", "tiny"],
        {"AIRLOCK_GATE_DIR": "open"},
        4,
        ["the gate cannot use open: others may write to it", "AIRLOCK_GATE_DIR"],
    ),
}


@pytest.fixture
def _odd_files(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/config.json").write_text("{}")
    weights = (70_000).to_bytes(8, "little") + b"{" * 100
    (tmp_path / "cut/model.safetensors").write_bytes(weights)


@pytest.mark.usefixtures("_odd_files")
@pytest.mark.parametrize("case", CASES)
def test_bad_input_ends_before_anything_starts_with_the_value_and_what_to_type(
    user: User, case: str
) -> None:
    args, env, expected, parts = CASES[case]
    code, out, err = user.typed(*args, env=env)
    assert code == expected, (out, err)
    for part in parts:
        assert part in err
    assert "→" in err
    assert len(err.strip().splitlines()) <= 3
    assert "Traceback" not in err + out
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("args", "env", "expected", "parts"),
    [
        (["32b"], {}, 4, ["32b needs an NVIDIA GPU", "./start.sh tiny"]),
        ([], {}, 4, ["32b needs"]),
        ([], {"AIRLOCK_PRESET_PROFILE": "14b"}, 4, ["14b needs"]),
        (["tiny"], {"CUDA_VISIBLE_DEVICES": "0,7"}, 2, ["DEVICES=0,7", "no NVIDIA GPU"]),
    ],
)
def test_what_needs_a_gpu_says_so_where_there_is_none(
    typed: Typed, args: list[str], env: dict[str, str], expected: int, parts: list[str]
) -> None:
    err = typed.error_of("run", *args, code=expected, env=env)
    assert all(part in err for part in parts), err


@pytest.mark.long
def test_a_bad_row_of_the_data_is_named_with_its_line_and_no_rank_is_started(user: User) -> None:
    data = user.folder / "bad rows.jsonl"
    good = f'{{"prompt": "a", "response": "b", "note": "{"x" * 1000}"}}\n'
    # Further down than the check of the first rows reaches.
    data.write_text(good * 1100 + '{"prompt": "a", "answer": "b"}\n')
    err = user.error_of("run", "tiny", "--data", str(data), code=5)
    assert f"{data}:1101" in err
    assert "answer, prompt" in err
    (run,) = Path(user.environ["AIRLOCK_RUNS_DIR"]).glob("2*")
    assert not (run / "logs" / "attempt0").exists()
    assert '"phase": "failed"' in (run / "status.json").read_text()


def test_a_dry_run_shows_every_value_with_its_source_and_writes_nothing(user: User) -> None:
    settings = ("--set", "train.max_steps=7", "--set", "train.global_batch_size=8")
    args = ("run", "tiny", "--dry-run", *settings)
    before = {process.pid for process in psutil.process_iter()}
    env = {"NUM_GPUS": "2", "OMP_NUM_THREADS": "5", "NCCL_BUFFSIZE": "1"}
    out = user.output_of(*args, env=env)
    assert "max_steps = 7  # option --set train.max_steps" in out
    assert "num_ranks = 2  # NUM_GPUS=2" in out
    assert re.search(r"^  OMP_NUM_THREADS=5 +environment: ", out, re.MULTILINE)
    line = out.splitlines()[-1]
    assert line.startswith("env -u NCCL_BUFFSIZE AIRLOCK_RUN_DIR=")
    assert " torchrun --nnodes=1 --nproc-per-node=2 " in line
    assert line.endswith(" -m launch.start.rank.rank")
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()
    left = {p.pid for p in psutil.Process().children(recursive=True)} - before
    assert not left
