"""The fixture `story`: a run of three ranks of which nothing is known yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state.story import Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path, 3)
