"""Fixtures of the monitor's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.monitor.serving import Server, served


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Give the server a cache of its own: with the token, and the indexes."""
    (tmp_path / "monitor-cache").mkdir()
    return {**environ, "AIRLOCK_CACHE_DIR": str(tmp_path / "monitor-cache")}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve one folder to all tests that add a run of their own name to it."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    cache = folder.parent / "cache"
    folder.mkdir()
    cache.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRLOCK_")}
    environ = {**kept, "PYTHONPATH": str(ROOT), "AIRLOCK_CACHE_DIR": str(cache)}
    with served(folder, environ) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder of runs."""
    path = tmp_path / "some-runs"
    path.mkdir()
    return path
