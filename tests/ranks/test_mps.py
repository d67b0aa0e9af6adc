"""The trial of a Mac's GPU in a child, by real children: one works, one fails, one never ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.running import hooked

_CHOOSE = """
import torch
from rundir.config import RunConfig
from train.worker import plain_device
print(plain_device(RunConfig(profile="test"), torch.device("cpu"), print, timeout_s=float({})))
"""
_HAS_MPS = "module.is_available = lambda: True"


def chosen(folder: Path, environ: dict[str, str], child: str, timeout_s: float) -> list[str]:
    """Return what a process prints that believes in its MPS, and whose trial runs `child`."""
    env = {**os.environ, **hooked(environ, folder, "torch.backends.mps", _HAS_MPS)}
    if child:
        with (folder / "sitecustomize.py").open("a") as file:
            file.write(f"\nimport sys\nif 'ranks.mps' in sys.orig_argv:\n    {child}\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHOOSE.format(timeout_s)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_mps_is_taken_if_the_trial_succeeds(tmp_path: Path, environ: dict[str, str]) -> None:
    assert chosen(tmp_path, environ, "import os; os._exit(0)", 60.0) == ["mps"]


@pytest.mark.skipif(sys.platform == "darwin", reason="here the real trial succeeds")
def test_the_cpu_is_taken_if_the_trial_fails(tmp_path: Path, environ: dict[str, str]) -> None:
    told, device = chosen(tmp_path, environ, "", 250.0)
    assert device == "cpu"
    assert told.startswith("DEVICE: cpu, and not the GPU of this Mac (mps): a trial failed: ")


def test_the_cpu_is_taken_if_the_trial_never_ends(tmp_path: Path, environ: dict[str, str]) -> None:
    told, device = chosen(tmp_path, environ, "import time; time.sleep(1000)", 2.0)
    assert device == "cpu"
    assert told.endswith("it has not computed a small matrix within 2 s")
