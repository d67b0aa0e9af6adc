"""The systemd unit of the inbox: systemd itself finds nothing wrong with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNIT = ROOT / "examples" / "airlock-inbox.service"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: only it knows what a unit may say")
    (tmp_path / "airlock").symlink_to(ROOT)  # where the unit has the clone, in its user's home
    (tmp_path / "runtime").mkdir()
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(UNIT)],
        env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr + done.stdout) == (0, "")


def test_a_stop_waits_as_long_as_a_run_may_take_to_save() -> None:
    from rundir.config import LaunchConfig

    (line,) = [
        line for line in UNIT.read_text("utf-8").splitlines() if line.startswith("TimeoutStopSec=")
    ]
    assert float(line.partition("=")[2]) > LaunchConfig().stop_timeout_s + 60
