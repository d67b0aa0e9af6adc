"""What the tests of rungs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def on_cpu(environ: dict[str, str]) -> dict[str, str]:
    """The environment of a test, without the GPUs that there may be."""
    return environ | {"CUDA_VISIBLE_DEVICES": ""}
