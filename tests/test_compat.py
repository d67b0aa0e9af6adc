"""All private names of torch and CPython that are used still exist; a missing one is named."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.start.agent import elastic_compat as of_agent
from machine.processes import python_compat as of_python
from ranks import flight_compat as of_flight
from ranks import torch_compat as of_training
from ranks import transformers_compat as of_transformers
from rundir.paths import PACKAGES
from train.model import sample_borders as of_masks

ROOT = Path(__file__).resolve().parents[1]
COMPAT = [
    "machine/processes/python_compat.py",
    "launch/start/agent/elastic_compat.py",
    "ranks/flight_compat.py",
    "ranks/torch_compat.py",
    "ranks/transformers_compat.py",
]


def is_there(name: str) -> bool:
    """Return whether `module:attribute.attribute` exists, or a method of its class sets it."""
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *parents, last = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return hasattr(owner, last) or (inspect.isclass(owner) and is_set_by(owner, last))


def is_set_by(owner: type, name: str) -> bool:
    classes = (one for one in inspect.getmro(owner) if one is not object)
    return any(f"self.{name}" in inspect.getsource(one) for one in classes)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.distributed.optim's
@pytest.mark.parametrize(
    "name",
    of_python.PRIVATE
    + of_training.PRIVATE
    + of_transformers.PRIVATE
    + of_masks.PRIVATE
    + of_flight.PRIVATE
    + of_agent.PRIVATE,
)
def test_what_is_private_and_used_is_there(name: str) -> None:
    assert is_there(name), f"{name} has gone: see the compat module that names it"


def test_the_compiler_is_imported_where_that_is_asked() -> None:
    program = (
        "import sys; from ranks.torch_compat import import_compiler\n"
        "before = 'torch._dynamo' in sys.modules; import_compiler()\n"
        "print(before, 'torch._dynamo' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, **PIPED
    )
    assert done.stdout == "False True\n"


def private_imports(path: Path) -> list[str]:
    """Return the imports of a file that name anything private of another package."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [name for name in names if any(is_private(part) for part in name.split("."))]
    return [name for name in found if name.partition(".")[0] not in ("__future__", *OURS)]


PIPED: Any = {"capture_output": True, "text": True}
OURS = (*PACKAGES, "api")


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_private_is_imported_elsewhere(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        if str(path.relative_to(ROOT)) not in COMPAT:
            assert not private_imports(path), path
