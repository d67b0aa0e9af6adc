"""Optional packages: needed by some configurations only, and not installed by default."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from launch.track.services import services_in
from machine.typed import pip_install
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError

# What the extra `monitor` brings: the module, and what pip calls it.
FOR_SERVING = {"fastapi": "fastapi>=0.165", "uvicorn": "uvicorn>=0.35"}
FOR_PAGES = {**FOR_SERVING, "uplot": "uplot-python>=1.1"}

_COMPILERS = ("c++", "g++", "clang++")


def missing(config: RunConfig) -> list[tuple[str, str]]:
    """Return what this run needs and lacks, each as (message, command that installs it)."""
    lacking = []
    for setting, needed in _extra_packages(config):
        if not is_installed(needed.partition(">")[0].replace("-", "_")):
            text = f"{setting} needs the package {needed}, which is not installed"
            lacking.append((text, pip_install(needed)))
    if config.model.compile and not _has_compiler():
        text = "model.compile=true needs a C++ compiler, and there is none on PATH"
        lacking.append((text, "sudo apt-get install g++, or CXX=/path/to/one"))
    if config.model.compile and " " in (folder := _folder_of("torch")):
        text = f"model.compile=true: torch's compiler cannot link in a path with a space: {folder}"
        lacking.append((text, "AIRLOCK_PYTHON=PATH names another Python, or move the clone"))
    return lacking


def is_installed(name: str) -> bool:
    """Return whether `import name` would find a package.

    A bare folder of that name, such as W&B creates, does not count.
    """
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def _folder_of(name: str) -> str:
    spec = find_spec(name)
    return "" if spec is None or spec.origin is None else str(Path(spec.origin).parent)


def require(config: RunConfig) -> None:
    """Raise UserError for the first missing package or tool."""
    for text, do in missing(config):
        raise UserError(text, do=do, code=ExitCode.PREFLIGHT)


def require_packages(command: str, needed: Mapping[str, str]) -> None:
    """Raise UserError if packages of `airlock COMMAND` are missing, with what installs them."""
    lacking = [package for module, package in needed.items() if not is_installed(module)]
    if lacking:
        many = len(lacking) > 1
        raise UserError(
            f"airlock {command} needs the package{'s' * many} {' and '.join(lacking)}, which "
            f"{'are' if many else 'is'} not installed",
            do=shlex.join([sys.executable, "-m", "pip", "install", *lacking]),
            code=ExitCode.PREFLIGHT,
        )


def _extra_packages(config: RunConfig) -> list[tuple[str, str]]:
    needed = []
    if config.train.method == "qlora":
        needed.append(("train.method=qlora", "bitsandbytes>=0.48"))
    elif config.train.optimizer == "adamw-8bit":
        needed.append(("train.optimizer=adamw-8bit", "bitsandbytes>=0.48"))
    if config.model.attention == "flash_attention_2":
        needed.append(("model.attention=flash_attention_2", "flash-attn>=2.6"))
    services = services_in(config.train.report_to)
    return [*needed, *((f"train.report_to={name}", name) for name in services)]


def _has_compiler() -> bool:
    own = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((own,) if own else _COMPILERS))
