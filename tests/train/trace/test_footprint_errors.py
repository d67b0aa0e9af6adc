"""A model that cannot be traced is reported plainly, by the function and by the command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.footprint import read_footprints
from tests.conftest import ROOT
from tests.forked import run_module
from tests.train.trace.test_footprint import GPT2, QWEN3, configured
from train.trace.estimate import footprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt17"}, "model_type = 'gpt17' is not known to transformers"),
        ({"model_type": "t5"}, "a training step of t5 cannot be traced"),
        ({"hidden_size": -64}, "a training step of qwen3 cannot be traced"),
        ({"hidden_size": "many"}, "a training step of qwen3 cannot be traced"),
        ({"num_attention_heads": 0}, "a training step of qwen3 cannot be traced"),
        ({"num_hidden_layers": -3}, "a training step of qwen3 cannot be traced"),
    ],
)
def test_a_shape_that_is_none_is_said_plainly(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        footprint(configured(QWEN3 | change), "cuda")


def test_a_folder_is_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    config = configured({}, path=str(tmp_path))
    with pytest.raises(UserError, match=r"no folder with a config\.json"):
        footprint(config, "cuda")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3), encoding="utf-8")
    assert footprint(config, "cuda") == footprint(configured(QWEN3), "cuda")
    file.write_text('{"model_type": "qwen3", ', encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json cannot be used"):
        footprint(config, "cuda")
    own_code = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    file.write_text(json.dumps(own_code), encoding="utf-8")
    with pytest.raises(UserError, match="trust_remote_code"):
        footprint(config, "cuda")


def ask(folder: Path, *configs: RunConfig) -> subprocess.CompletedProcess[str]:
    files = []
    for i, config in enumerate(configs):
        files.append(folder / f"{i}.toml")
        files[-1].write_text(config_text(config, {}), encoding="utf-8")
    words = [str(folder / "out.json"), *map(str, files), "--device", "cpu"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return run_module("train.trace", *words, env=env, is_forked=False)


@pytest.mark.long
def test_the_command_answers_in_order_or_says_why_not(tmp_path: Path) -> None:
    configs = [configured(QWEN3), configured(GPT2)]
    assert ask(tmp_path, *configs).returncode == 0
    assert read_footprints(tmp_path / "out.json") == [footprint(one, "cpu") for one in configs]
    (tmp_path / "out.json").unlink()
    failed = ask(tmp_path, configs[0], configured({"model_type": "gpt17"}))
    assert failed.returncode == ExitCode.USAGE
    assert "model_type = 'gpt17' is not known to transformers\n  → " in failed.stderr
    assert "Traceback" not in failed.stderr
    assert read_footprints(tmp_path / "out.json") == [footprint(configs[0], "cpu")]
