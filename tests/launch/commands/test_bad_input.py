"""User errors end in a line or two, before a run folder is made or a rank runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.running import Answered, Start, finish

HAS_GPU = Path("/proc/driver/nvidia/version").exists()

CASES = {
    "an unknown profile names the nearest": (["run", "tyni"], {}, 2, ["'tyni'", "./start.sh tiny"]),
    "no ranks": (["run", "tiny"], {"NUM_GPUS": "0"}, 2, ["NUM_GPUS=0", "1 to 64"]),
    "a number of ranks that is none": (["run", "tiny"], {"NUM_GPUS": "abc"}, 2, ["'abc'"]),
    "more ranks than CPU runs take": (["run", "tiny"], {"NUM_GPUS": "65"}, 2, ["65", "1 to 64"]),
    "the option too": (["run", "tiny", "--num-gpus", "-3"], {}, 2, ["-3", "--num-gpus"]),
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
    "an unknown key": (["run", "tiny", "--set", "train.max_step=1"], {}, 2, ["train.max_steps"]),
    "a key without a value": (["run", "tiny", "--set", "train.max_steps"], {}, 2, ["no value"]),
    "a wrong type": (["run", "tiny", "--set", "train.max_steps=few"], {}, 2, ["'few'", "whole"]),
    "a wrong type in the environment": (
        ["run", "tiny"],
        {"AIRLOCK_TRAIN_MAX_STEPS": "1.5"},
        2,
        ["AIRLOCK_TRAIN_MAX_STEPS", "'1.5'"],
    ),
    "a wrong choice": (["run", "tiny", "--set", "train.method=magic"], {}, 2, ["full, lora"]),
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
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_ends_before_anything_starts_with_the_value_and_what_to_type(
    answered: Answered, environ: dict[str, str], tmp_path: Path, case: str
) -> None:
    args, env, expected, parts = CASES[case]
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}\n')
    (tmp_path / "empty").mkdir()
    code, out, err = answered(*args, env=env)
    assert code == expected, (out, err)
    for part in parts:
        assert part in err
    assert "→" in err
    assert len(err.strip().splitlines()) <= 3
    assert "Traceback" not in err + out
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("args", "env", "parts"),
    [
        (["run", "32b"], {}, ["32b needs an NVIDIA GPU", "./start.sh tiny"]),
        (["run"], {}, ["32b needs"]),
        (["run"], {"AIRLOCK_PRESET_PROFILE": "14b"}, ["14b needs"]),
    ],
)
def test_a_profile_that_needs_a_gpu_says_so_where_there_is_none(
    answered: Answered, args: list[str], env: dict[str, str], parts: list[str]
) -> None:
    code, _, err = answered(*args, env=env)
    assert code == 4
    assert all(part in err for part in parts), err


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_cuda_visible_devices_that_names_an_absent_gpu_is_told_so(answered: Answered) -> None:
    code, _, err = answered("run", "tiny", env={"CUDA_VISIBLE_DEVICES": "0,7"})
    assert code == 2
    assert "CUDA_VISIBLE_DEVICES=0,7" in err
    assert "no NVIDIA GPU" in err


def test_a_bad_row_of_the_data_is_named_with_its_line_and_no_rank_is_started(
    answered: Answered, environ: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "bad rows.jsonl"
    good = '{"prompt": "a", "response": "b"}\n'
    # Further down than the check of the first rows reaches.
    data.write_text(good * 50_000 + '{"prompt": "a", "answer": "b"}\n')
    code, _, err = answered("run", "tiny", "--data", str(data))
    assert code == 5
    assert f"{data}:50001" in err
    assert "answer, prompt" in err
    (run,) = Path(environ["AIRLOCK_RUNS_DIR"]).glob("2*")
    assert not (run / "logs" / "attempt0").exists()
    assert '"phase": "failed"' in (run / "status.json").read_text()


def test_a_model_cut_short_is_named_before_anything_starts(
    answered: Answered, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((70_000).to_bytes(8, "little") + b"{" * 100)
    code, _, err = answered("run", "tiny", "--set", f"model.path={tmp_path}")
    assert code == 4
    assert "its header would have 70,000 bytes, the file has 108" in err
    assert f"rm {tmp_path}/model.safetensors" in err
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()


def test_a_pipe_as_data_is_refused_instead_of_waited_for(
    answered: Answered, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, _, err = answered("run", "tiny", "--data", "pipe")
    assert code == 5
    assert "not a regular file" in err


def test_a_gate_folder_that_others_may_write_to_is_refused(
    answered: Answered, tmp_path: Path
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    code, _, err = answered("run", "tiny", env={"AIRLOCK_GATE_DIR": str(folder)})
    assert code == 4
    assert str(folder) in err
    assert "AIRLOCK_GATE_DIR" in err


def test_a_dry_run_shows_every_value_with_its_source_and_writes_nothing(
    airlock: Start, environ: dict[str, str]
) -> None:
    args = ("run", "tiny", "--dry-run", "--set", "train.max_steps=7")
    before = {process.pid for process in psutil.process_iter()}
    code, out, err = finish(airlock(*args, env={"NUM_GPUS": "3", "OMP_NUM_THREADS": "5"}))
    assert code == 0, err
    assert "max_steps = 7  # option --set train.max_steps" in out
    assert "num_ranks = 3  # NUM_GPUS=3" in out
    assert re.search(r"^  OMP_NUM_THREADS=5 +environment: ", out, re.MULTILINE)
    assert "torchrun --nnodes=1 --nproc-per-node=3" in out
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()
    left = {p.pid for p in psutil.Process().children(recursive=True)} - before
    assert not left
