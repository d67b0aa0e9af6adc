"""What the tests of fetching share: a Hub on a real socket, in whose place a program finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub_server import Hub


@pytest.fixture
def hub_env(hub: Hub, environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return an environment whose Hub is the test's own, and whose cache is empty."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("HF_") and not name.lower().endswith("_proxy")
    }
    return kept | {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url}


def start_child(env: dict[str, str], module: str, *args: str) -> subprocess.Popen[str]:
    """Start a module as the launcher starts a child."""
    child = ("machine.processes.child", str(os.getpid()), module)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *child, *args],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
