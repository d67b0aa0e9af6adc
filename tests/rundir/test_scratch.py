"""Temporary folders: removed with their block, or, after a kill -9, by the next process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rundir.atomic import scratch
from tests.conftest import ROOT

_KILLED = """
import os, signal
from rundir.atomic import scratch
with scratch("test") as folder:
    (folder / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-P", "-c", _KILLED], env=env, check=False)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    with scratch("other"):
        assert left.is_dir()
    with scratch("test") as first, scratch("test") as second:  # a live one is left alone
        assert not left.exists()
        assert first.is_dir()
        assert second.is_dir()
    assert not list(tmp_path.iterdir())
