"""Scripts as a user would write them, for the tests that run them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

BOTH = pytest.mark.parametrize("start", ["warm", "cold"])
WARM = pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])

# With a barrier: a rank that ended at once could leave another alone in its init_process_group.
JOIN = """
import os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
dist.barrier()
"""


def script(folder: Path, text: str, name: str = "my_train.py") -> str:
    """Write a script with that text; return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)
