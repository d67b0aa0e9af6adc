"""Inboxes for tests: each in a folder of its own, with a stand-in for start.sh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inbox.serving import Served, serving


@pytest.fixture
def served(environ: dict[str, str], tmp_path: Path) -> Iterator[Served]:
    """Yield an inbox that nobody serves yet: `served.start(*options)`."""
    with serving(tmp_path / "folder", environ, "not started") as found:
        yield found
