"""What tests of the doctor share: a folder for their runs, and the prefilter of the real rules."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from doctor.logs.prefilter import Prefilter
from doctor.logs.rules import Pattern


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put runs into the test's own folder, which is also the working directory."""
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture(scope="session", autouse=True)
def _one_prefilter() -> Iterator[None]:
    """Make the prefilter of the same rules once, which takes longer than to read a short log."""
    made = cache(Prefilter)

    def prefilter(patterns: list[Pattern]) -> Prefilter:
        own = copy.copy(made(tuple(patterns)))
        own._dull = set()  # it remembers nothing of other logs
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("doctor.logs.search.Prefilter", prefilter)
        yield
