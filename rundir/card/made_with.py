"""made_with.json: the versions that a run was made with, and the commit of the clone."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rundir.atomic import write_text
from rundir.files.json_object import json_object
from rundir.paths import ROOT, RunDir

_LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "bitsandbytes", "safetensors")
_GIT_TIMEOUT_S = 5.0


def write_made_with(run: RunDir) -> None:
    """Write made_with.json into the run folder. Raises OSError."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    made = {"commit": commit_of_clone(), "versions": versions}
    write_text(run.made_with, json.dumps(made, indent=1) + "\n")


def read_made_with(run: RunDir) -> dict[str, Any]:
    """Return what `write_made_with` wrote; nothing for a run of an earlier version."""
    return json_object(run.made_with)


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
