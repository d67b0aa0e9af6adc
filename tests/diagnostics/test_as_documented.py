"""Rungs as docs/checks.md has them typed: `python -m diagnostics.NAME`, in the clone's folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launch.checks.rungs import NAMES
from tests.diagnosing import ROOT
from tests.running import here


def typed(
    name: str, environ: dict[str, str], *python: str, as_file: bool = False, as_json: bool = False
) -> subprocess.CompletedProcess[str]:
    """Type it in a shell that knows nothing of the clone but its folder."""
    env = {key: value for key, value in environ.items() if not key.startswith("PYTHON")}
    words = [f"diagnostics/{name}.py"] if as_file else ["-m", f"diagnostics.{name}"]
    words += ["--json"] if as_json else []
    return subprocess.run(
        [*(python or (sys.executable,)), *words],
        cwd=ROOT,
        env=env | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


LONG = [(name, False) for name in NAMES if name != "environment"] + [("imports", True)]


@pytest.mark.parametrize(
    ("name", "as_file"),
    [
        ("environment", False),
        ("environment", True),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_a_rung_typed_from_the_clone_is_green(
    name: str, environ: dict[str, str], as_file: bool
) -> None:
    done = typed(name, environ, as_file=as_file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok " in done.stdout
    assert "FAIL" not in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_outside_an_environment_a_line_says_what_to_activate(
    name: str, environ: dict[str, str]
) -> None:
    done = typed(name, environ, sys.executable, "-S")  # without any packages
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
    told = typed("environment", environ, sys.executable, "-S").stderr
    for line in told.splitlines()[1:]:
        pasted = line.removeprefix("  → ")
        env = {key: value for key, value in environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            ["bash", "-c", pasted],
            cwd=ROOT,
            env=env | {"CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, pasted + done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_rung_can_be_typed_as_a_file(name: str, environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, f"diagnostics/{name}.py", "--help"],
        cwd=ROOT,
        env={key: value for key, value in environ.items() if not key.startswith("PYTHON")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Usage: diagnostics.{name} " in done.stdout


def test_a_rung_typed_as_a_file_outside_an_environment_says_what_to_activate(
    environ: dict[str, str],
) -> None:
    done = typed("basic", environ, sys.executable, "-S", as_file=True)
    assert f"airlock: {sys.executable} lacks: " in done.stderr, done.stderr
    assert f"{here('airlock')} check basic " in done.stderr
    assert done.returncode == 4


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
    no_path = {"PYTHONPATH", "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-m", *words],
        cwd=ROOT,
        env={key: value for key, value in environ.items() if key not in no_path},
        capture_output=True,
        text=True,
        check=False,
    )
    first, *commands = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (4, "")
    assert first.startswith(f"airlock: {sys.executable} lacks: ")
    program, *args = script.split()
    assert f"  → {' '.join([here(program), *args])}   # " in commands[-1]
