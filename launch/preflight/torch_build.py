"""Which build of torch is installed, without importing it: torch/version.py says so."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """A version like 2.13.0+cpu, and the CUDA or ROCm that it is built for, if any."""

    version: str
    cuda: tuple[int, int] | None
    hip: str | None = None


def torch_build() -> TorchBuild | None:
    """The torch that this Python would import, or None where there is none, or it is not torch's.

    Raises SyntaxError for a file that is no Python.
    """
    found = importlib.util.find_spec("torch")  # looks for it, and loads nothing
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    values = dict(_assignments(text))
    version, cuda = values.get("__version__"), values.get("cuda")
    if version is None:
        return None
    numbers = None if cuda is None else cuda.split(".")
    return TorchBuild(
        version=version,
        cuda=None if numbers is None else (int(numbers[0]), int(numbers[1])),
        hip=values.get("hip"),
    )


def _assignments(text: str) -> list[tuple[str, str | None]]:
    """`name = 'text'` and `name: type = 'text'` at the top of a module."""
    found = []
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found.append((target.id, None if value.value is None else str(value.value)))
    return found
