"""Rungs as docs/checks.md has them typed: `python -m diagnostics.NAME`, in the clone's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.checks.rungs import NAMES
from tests.diagnosing import ROOT
from tests.running import Start, Typed, here

BARE = "-S"  # a Python without any packages


def typed(
    environ: dict[str, str], *words: str, program: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Type a command in a shell that knows nothing of the clone but its folder."""
    env = {key: value for key, value in environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [program, *words],
        cwd=ROOT,
        env=env | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


LONG = [f"-m diagnostics.{name}" for name in NAMES if name != "environment"]
LONG += ["diagnostics/imports.py"]


@pytest.mark.parametrize(
    "words",
    [
        "-m diagnostics.environment",
        "diagnostics/environment.py",
        *(pytest.param(words, marks=pytest.mark.long) for words in LONG),
    ],
)
def test_a_rung_typed_from_the_clone_is_green(words: str, environ: dict[str, str]) -> None:
    done = typed(environ, *words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok " in done.stdout
    assert "FAIL" not in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [("basic", "diagnostics/basic.py"), *((name, f"-m diagnostics.{name}") for name in NAMES)],
)
def test_outside_an_environment_a_line_says_what_to_activate(
    name: str, words: str, environ: dict[str, str]
) -> None:
    done = typed(environ, BARE, *words.split())
    assert (done.returncode, done.stdout) == (4, "")
    first, *commands = done.stderr.splitlines()
    assert first.startswith(f"airlock: {sys.executable} lacks: ")
    assert f"{here('airlock')} check {name} " in commands[-1]
    has_own = (ROOT / ".venv/bin/activate").exists()
    activates = f". {here('.venv/bin/activate')} && python -m diagnostics.{name} "
    assert (activates in done.stderr) == has_own


def test_what_it_says_works_when_it_is_pasted(environ: dict[str, str]) -> None:
    if not (ROOT / ".venv/bin/activate").exists():
        pytest.skip("no .venv here")
    errors = typed(environ, BARE, "-m", "diagnostics.environment").stderr
    for line in errors.splitlines()[1:]:
        pasted = line.removeprefix("  → ")
        done = typed(environ, "-c", pasted, program="bash")
        assert done.returncode == 0, pasted + done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_rung_can_be_typed_as_a_file(name: str, environ: dict[str, str]) -> None:
    done = typed(environ, f"diagnostics/{name}.py", "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: diagnostics.{name} " in done.stdout


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (("launch", "32b"), "start.sh 32b"),
        (("launch", "ps"), "airlock ps"),
        (("launch",), "start.sh"),
    ],
)
def test_the_programs_too_say_what_to_activate(
    environ: dict[str, str], words: tuple[str, ...], script: str
) -> None:
    none_active = environ | {"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    done = typed(none_active, BARE, "-m", *words)
    first, *commands = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (4, "")
    assert first.startswith(f"airlock: {sys.executable} lacks: ")
    program, *args = script.split()
    assert f"  → {' '.join([here(program), *args])}   # " in commands[-1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_rung_is_green_on_this_machine(airlock: Start, environ: dict[str, str]) -> None:
    process = airlock("check", "--json", env={"CUDA_VISIBLE_DEVICES": ""})
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    found = json.loads(out)
    assert [rung["rung"] for rung in found["rungs"]] == list(NAMES)
    assert all(rung["peak_rss_bytes"] > 0 for rung in found["rungs"])
    assert list(Path(environ["AIRLOCK_RUNS_DIR"]).iterdir()) == []


def test_a_red_finding_of_a_real_rung_is_the_ladders_line(typed: Typed) -> None:
    nowhere = "/proc/runs" if os.geteuid() == 0 else "/usr/runs"  # root may write to the latter
    env = {"AIRLOCK_RUNS_DIR": nowhere}
    code, out, err = typed("check", "environment", "--json", env=env)
    assert code == 4, out + err
    (rung,) = json.loads(out)["rungs"]
    assert rung["line"].startswith("disk: ")
    assert "AIRLOCK_RUNS_DIR=" in rung["do"]
