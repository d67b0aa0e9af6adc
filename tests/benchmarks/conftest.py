"""What tests of the benchmarks share: one thread for small matrices, as in those of the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpus.run import Place
from tests.train.conftest import one_thread

__all__ = ["one_thread"]  # used by every test


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return the place of the GPU benchmark's runs, which are on CPU here."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Place(folder=folder, device="cpu")
