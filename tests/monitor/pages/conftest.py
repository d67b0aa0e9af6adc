"""Fixtures of the tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import chromium as browsers
from rundir.paths import RunDir
from tests.conftest import ROOT
from tests.monitor.browsing import server
from tests.monitor.chromium import chromium_path
from tests.monitor.recorded import recorded


@pytest.fixture(scope="module")
def _browser() -> Iterator[Any]:
    """Start a browser; its event loop runs in this thread until the module's tests are over."""
    with browsers.chromium(chromium_path()) as browser:
        yield browser


@pytest.fixture
def chromium(_browser: Any) -> Iterator[Any]:
    """Return a headless browser; what a test opens in it ends with the test."""
    yield _browser
    for context in _browser.contexts:
        context.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RunDir]]:
    """Serve two runs that no test changes; yield the address and the newer of them."""
    folder = tmp_path_factory.mktemp("shown")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRLOCK_")},
        "PYTHONPATH": str(ROOT),
        "AIRLOCK_RUNS_DIR": str(folder / "runs"),
        "AIRLOCK_CACHE_DIR": str(folder),
    }
    run = recorded(folder / "runs")
    with server(environ) as base:
        yield base, run


@pytest.fixture
def demo(environ: dict[str, str]) -> RunDir:
    """Return the newer of two runs that lie in the folder of runs."""
    return recorded(Path(environ["AIRLOCK_RUNS_DIR"]))
