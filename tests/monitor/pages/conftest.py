"""Fixtures of the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import chromium as browsers
from rundir.paths import RunDir
from tests.monitor.chromium import chromium_path
from tests.monitor.recorded import recorded


@pytest.fixture
def chromium() -> Iterator[Any]:
    """Return a headless browser; what a test opens in it ends with the test."""
    with browsers.chromium(chromium_path()) as found:
        yield found


@pytest.fixture
def demo(environ: dict[str, str]) -> RunDir:
    """Return the newer of two runs that lie in the folder of runs."""
    return recorded(Path(environ["AIRLOCK_RUNS_DIR"]))
