"""The browser of the tests: the machine's own, or Debian's, installed once where there is none."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from benchmarks.serving.chromium import find

_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
_LOCK = Path("/var/cache/apt/airlock-tests.lock")  # root's own folder: tests run in two processes
_MOST_S = 220.0  # below the time that a test has


def chromium_path() -> str:
    """Return the browser's program; skips the test, with the reason, where it cannot be had."""
    pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    path, problem = _found_or_installed()
    if path is None:
        pytest.skip(f"{problem}; {' '.join(_INSTALL)}   # as root, then again")
    return path


@functools.cache  # a machine without a network is asked once, not by each test
def _found_or_installed() -> tuple[str | None, str]:
    if (path := find()) is not None:
        return path, ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None, "no Chromium here, and only root can install it, by apt-get"
    try:
        with FileLock(_LOCK, timeout=_MOST_S):
            problem = "" if find() else _install()
    except (OSError, Timeout) as error:
        problem = f"no Chromium here, and no lock to install it: {error}"
    return find(), problem or "apt-get has installed chromium, but no program of that name"


def _install() -> str:
    """Install Debian's package; return what went wrong."""
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    script = f"apt-get update && exec {' '.join(_INSTALL)}"
    try:
        done = subprocess.run(
            ["timeout", f"{_MOST_S:.0f}", "sh", "-c", script],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"apt-get cannot be run: {error}"
    if done.returncode == 0:
        return ""
    said = " ".join(done.stdout.split())[-300:]
    return f"no Chromium here, and apt-get ends with {done.returncode}: {said}"
