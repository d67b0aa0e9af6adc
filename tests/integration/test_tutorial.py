"""The tutorial as users type it: every command, its exit code, and every line it promises."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rundir.paths import PACKAGES
from tests.conftest import ROOT
from tests.running import User

PAGE = ROOT / "docs/tutorial.md"
_BLOCK = re.compile(r"^```(sh|text)(?: exits=(\d+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TRACKED = [
    *(*PACKAGES, "profiles", "examples", "api"),
    *("start.sh", "airlock", "pyproject.toml", "requirements.txt", "constraints.txt"),
]


class Step(NamedTuple):
    """A block of commands, its exit code, and lines that its output contains."""

    commands: str
    code: int
    promised: list[str]


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for kind, code, text in _BLOCK.findall(page):
        if kind == "sh":
            found.append(Step(text, int(code or 0), []))
        else:
            found[-1].promised.extend(text.splitlines())
    return found


def pattern(promised: str) -> re.Pattern[str]:
    """Compile a promised line to a pattern: an ellipsis stands for anything."""
    return re.compile(".*".join(map(re.escape, promised.split("…"))))


def clone(folder: Path) -> Path:
    """Copy the contents of a clone, with its environment already made."""
    folder.mkdir()
    for name in _TRACKED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_does_what_the_page_says(user: User) -> None:
    root = clone(user.folder / "clone")
    env = {name: value for name, value in user.environ.items() if name != "AIRLOCK_RUNS_DIR"}
    found = steps(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 7
    for step in found:
        done = subprocess.run(
            ["bash", "-c", f"set -eu\n{step.commands}"],
            cwd=root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == step.code, f"{step.commands}\n{done.stdout}"
        for line in step.promised:
            is_there = any(pattern(line).match(one) for one in done.stdout.splitlines())
            assert is_there, f"no line {line!r} in:\n{done.stdout}"
