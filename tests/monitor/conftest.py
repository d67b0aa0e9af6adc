"""Fixtures of the monitor's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Give the server a cache of its own: with the token, and the indexes."""
    (tmp_path / "monitor-cache").mkdir()
    return {**environ, "AIRLOCK_CACHE_DIR": str(tmp_path / "monitor-cache")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder of runs."""
    path = tmp_path / "some-runs"
    path.mkdir()
    return path
