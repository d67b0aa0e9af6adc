"""The trial of a Mac's GPU in a child, by real children: one works, one fails, one never ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from rundir.config import RunConfig
from tests.conftest import ROOT
from train.worker import plain_device


@pytest.mark.runs
@pytest.mark.parametrize(
    ("child", "timeout_s", "device", "told"),
    [
        ("import os; os._exit(0)", 60.0, "mps", ""),
        ("import time; time.sleep(1000)", 2.0, "cpu", "not computed a small matrix within 2 s"),
        pytest.param(
            "pass  # the real trial",
            250.0,
            "cpu",
            "DEVICE: cpu, and not the GPU of this Mac (mps): a trial failed: ",
            marks=pytest.mark.skipif(sys.platform == "darwin", reason="here it succeeds"),
        ),
    ],
    ids=["succeeds", "never ends", "fails"],
)
def test_mps_is_taken_if_the_trial_succeeds_and_else_the_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    child: str,
    timeout_s: float,
    device: str,
    told: str,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif 'ranks.mps' in sys.orig_argv:\n    {child}\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    lines: list[str] = []
    config, cpu = RunConfig(profile="test"), torch.device("cpu")
    assert plain_device(config, cpu, lines.append, timeout_s=timeout_s).type == device
    assert len(lines) == bool(told)
    assert told in "".join(lines)
