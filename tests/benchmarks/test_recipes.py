"""Trainers of others have the same losses behind Airlock, at either start, as behind torchrun."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rundir.paths import ROOT


@pytest.mark.long
def test_trl_trains_the_same_behind_torchrun_and_at_either_start() -> None:
    command = [sys.executable, "-P", "-m", "benchmarks.recipes", "--pairs", "1", "--json"]
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for way in ("torchrun", "first start", "second start"):
        assert told[way]["same_losses"] is True
        assert told[way]["cpu_s"] > 0
