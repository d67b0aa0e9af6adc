"""Running a diagnostic as a user would, on this machine or with something broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import PACKAGES
from tests.forked import LAUNCHER, PREPARER, run_module

ROOT = Path(__file__).resolve().parent.parent
_STARTS_OTHERS = ("imports", "collectives", "medium", "ranks")  # for all that takes time
_MEASURES_ITSELF = ("basic", "model", "single_gpu")


@dataclass(frozen=True)
class Ended:
    """A diagnostic that has ended; `summary` is the JSON object of its last line."""

    code: int
    output: str
    summary: dict[str, Any]

    def finding(self, check: str) -> dict[str, Any]:
        return next(dict(one) for one in self.summary["findings"] if one["check"] == check)


def environment(*path: Path, root: Path = ROOT, **variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AIRLOCK_", "RUN_"))}
    python_path = os.pathsep.join(str(entry) for entry in (root, *path))
    return clean | {"PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": ""} | variables


def diagnose(name: str, *arguments: str, env: dict[str, str] | None = None) -> Ended:
    env = env or environment()
    is_forked: bool | None = None  # by its environment
    if name in _STARTS_OTHERS:
        is_forked = env["PYTHONPATH"].startswith(f"{ROOT}{os.pathsep}") or None
    elif name in _MEASURES_ITSELF:
        is_forked = False
    modules = PREPARER if name == "data" else LAUNCHER
    module, args = f"diagnostics.{name}", ("--json", *arguments)
    return outcome(run_module(module, *args, env=env, modules=modules, is_forked=is_forked))


def outcome(done: subprocess.CompletedProcess[str]) -> Ended:
    """Return what a diagnostic has printed."""
    last = done.stdout.strip().rpartition("\n")[2]
    summary = json.loads(last) if last.startswith("{") else {}
    return Ended(done.returncode, done.stdout + done.stderr, summary)


def clone(folder: Path) -> Path:
    """Copy the code that the diagnostics need, so that it can be broken."""
    for name in (*PACKAGES, "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def require_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
