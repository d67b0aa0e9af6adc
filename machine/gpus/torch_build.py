"""The torch that is installed, as its files tell, without importing it."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

ROCM_DO = (
    "NUM_GPUS=8 ./start.sh my_train.py   # a script of your own gets AMD GPUs; Airlock's trainer "
    "does on NVIDIA's alone: ./start.sh tiny runs on CPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """A version like 2.13.0+cpu, and the CUDA or ROCm that it is built for, if any."""

    version: str
    cuda: tuple[int, int] | None
    hip: str | None = None

    @property
    def of_rocm(self) -> str:
        """What such a build means for a run; an empty text for any other."""
        if not self.hip:
            return ""
        return (
            f"torch {self.version} is built for ROCm {self.hip}, and Airlock knows of no AMD GPU: "
            "its plan, its checks and its samples ask NVIDIA's driver (NVML)"
        )


def torch_build() -> TorchBuild | None:
    """Return the torch that this Python would import; None if there is none, or it is not torch's.

    Raises SyntaxError if its version.py is not valid Python.
    """
    spec = importlib.util.find_spec("torch")  # finds the package without loading it
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
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
    """Return the assignments `name = 'text'` and `name: type = 'text'` at the top of a module."""
    assignments = []
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            assignments.append((target.id, None if value.value is None else str(value.value)))
    return assignments
