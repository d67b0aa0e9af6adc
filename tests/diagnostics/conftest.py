"""Fixtures shared by the tests of rungs."""

from __future__ import annotations

import pytest


@pytest.fixture
def on_cpu(environ: dict[str, str]) -> dict[str, str]:
    """Return the test's environment, with any GPUs hidden."""
    return environ | {"CUDA_VISIBLE_DEVICES": ""}
