"""Versions of installed libraries, and made_with.json: those that a run was made with."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from rundir.atomic import write_text
from rundir.paths import ROOT, RunDir

# Memory measurements hold only for the same versions of these.
_OF_MEASUREMENTS = ("torch", "transformers", "peft", "bitsandbytes", "flash_attn")
_OF_CARDS = ("torch", "transformers", "tokenizers", "peft", "bitsandbytes", "safetensors")
_GIT_TIMEOUT_S = 5.0


def library_versions() -> list[str]:
    """Return the versions of the libraries that load and train models; "none" if one is missing."""
    return [version_of(name) or "none" for name in _OF_MEASUREMENTS]


def version_of(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def write_made_with(run: RunDir) -> None:
    """Write made_with.json into the run folder. Raises OSError."""
    versions = {"python": platform.python_version()}
    versions |= {name: known for name in _OF_CARDS if (known := version_of(name)) is not None}
    made = {"commit": commit_of_clone(), "versions": versions}
    write_text(run.made_with, json.dumps(made, indent=1) + "\n")


@cache
def commit_of_clone() -> str:
    """Return the commit of the clone, with "-dirty" if files are changed; "" if git has none."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        described = subprocess.run(
            [*command, "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip()
