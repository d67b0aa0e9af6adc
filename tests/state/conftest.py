"""What tests of a run's state share: a story of which nothing is known yet, and a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rundir.paths import RunDir, create_run
from tests.state.story import Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Return the story of a run of three ranks."""
    return Story(tmp_path, 3)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path))
    return create_run("tiny")
