"""A conversation with two models of which one has no room left for a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import RunDir
from tests.launch.run_folders import trained_run
from tests.models import tiny_model
from train.data.path_samples import load_text_tools
from train.model.build import load_model
from train.speakers import Speaker, Way
from train.talk import Talk

_LONG = "word " * 100  # more than the 256 tokens of `tiny`


def test_what_is_too_long_for_one_is_answered_by_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_model(tmp_path / "base")
    run: RunDir = trained_run(tmp_path / "run", base=base)
    model = load_model(read_config(run.config), base, torch.device("cpu")).eval()
    both = [Speaker(label=label, model=model, end_ids=[1]) for label in ("base", "trained")]
    talk = Talk(both, Way(max_new_tokens=4), load_text_tools(base))
    both[0].messages = [{"role": "user", "content": _LONG}]
    talk.ask("ab")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("airlock: base: ")
    assert "tokens are more than the model takes" in lines[0]
    assert sum(line.startswith("trained: ") for line in lines) == 1
    assert len(both[1].messages) == 2
    with pytest.raises(UserError, match="more than the model takes"):
        talk.ask(_LONG)
    assert "trained: " not in capsys.readouterr().out
