"""The systemd unit of the inbox: systemd itself finds nothing wrong with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNIT = ROOT / "examples" / "airlock-inbox.service"


def _verified(text: str, folder: Path) -> str:
    """Return what systemd says about a unit, whose home has the clone in `airlock`."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: only it knows what a unit may say")
    (folder / "airlock").symlink_to(ROOT)
    file = folder / UNIT.name
    file.write_text(text, encoding="utf-8")
    (folder / "runtime").mkdir()
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(file)],
        env=os.environ | {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder / "runtime")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr + done.stdout or ("" if done.returncode == 0 else "it failed")


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    assert _verified(UNIT.read_text(encoding="utf-8"), tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("KillMode=", "KilMode="),
        ("Restart=on-failure", "Restart=often"),
        ("airlock/airlock", "airlock/none"),
    ],
)
def test_a_mistake_in_the_unit_would_be_seen(tmp_path: Path, right: str, wrong: str) -> None:
    text = UNIT.read_text(encoding="utf-8")
    assert right in text
    assert _verified(text.replace(right, wrong, 1), tmp_path) != ""


def test_a_stop_waits_as_long_as_a_run_may_take_to_save() -> None:
    from rundir.config import LaunchConfig

    (line,) = [
        line for line in UNIT.read_text("utf-8").splitlines() if line.startswith("TimeoutStopSec=")
    ]
    assert float(line.partition("=")[2]) > LaunchConfig().stop_timeout_s + 60
