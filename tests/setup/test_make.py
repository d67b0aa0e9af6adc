"""The clone's own environment: created on first use, and recreated when necessary."""

import contextlib
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clone import BASE_PYTHON, UV, Clone, environment, tool


def test_the_first_start_installs_what_is_pinned_and_runs_with_it(installed: Clone) -> None:
    python = installed.root / ".venv/bin/python"
    show = "import airlock_tiny; print(airlock_tiny.version, airlock_tiny.__cached__)"
    version, cached = installed.execute([str(python), "-I", "-c", show]).stdout.split(maxsplit=1)
    assert version == "1.0"
    assert Path(cached.strip()).exists(), "it was not compiled"
    assert "airlock-tiny==1.0" in (installed.root / ".venv/install.log").read_text()
    left = {path.name for path in (installed.root / ".venv").glob(".*")}
    assert left.isdisjoint({".airlock-installing", ".uv"})


def test_the_second_start_starts_no_python_but_the_program(started: Clone) -> None:
    log = started.root.parent / "starts"
    record = f'#!/bin/sh\necho "$0 $*" >>{log}\n'
    python = started.root / ".venv/bin/python"
    tool(started.bin / "python3", record)
    tool(python, f'{record}exec {BASE_PYTHON} "$@"\n')
    started.stub("tiny")
    assert log.read_text() == f"{python} -P -m launch run tiny\n"


def test_changed_requirements_are_installed_in_place(started: Clone) -> None:
    kept = started.write(".venv/kept", "")
    started.pin(started.wheels("1.1"))
    assert ".venv is ready" in started.run().stderr
    assert list(started.root.glob(".venv/lib/*/site-packages/airlock_tiny-1.1.dist-info"))
    assert not list(started.root.glob(".venv/lib/*/site-packages/airlock_tiny-1.0.dist-info"))
    assert kept.exists()
    started.write("constraints.txt", "# other\n")
    assert ".venv is ready" in started.run().stderr
    assert started.run().stderr == ""


def test_the_development_tools_come_with_the_first_test_and_stay(started: Clone) -> None:
    started.write("requirements-dev.txt", "-r requirements.txt\n")
    started.write(".venv/lib/stub", "")
    site = next(started.root.glob(".venv/lib/python*/site-packages"))
    (site / "pytest.py").write_text("print('the tests')")
    first = started.run(script="test.sh")
    assert (first.stdout, ".venv is ready" in first.stderr) == ("the tests\n", True)
    second = started.run(script="test.sh")
    assert (second.stdout, second.stderr) == ("the tests\n", "")
    assert started.run().stderr == ""


def test_an_update_that_is_refused_leaves_an_environment_that_is_not_whole_with_all_in_it(
    started: Clone,
) -> None:
    kept = started.write(".venv/kept", "")
    requirements = (started.root / "requirements.txt").read_text()
    started.pin("--no-index\nairlock-tiny==7\n")
    tool(started.bin / "uv", "#!/bin/sh\necho uv 0.9.1; [ $1 = --version ]\n")
    assert started.run().returncode == 4
    tool(started.bin / "uv", f'#!/bin/sh\nexec "{UV}" "$@"\n')
    result = started.run()
    assert result.returncode == 4
    assert "airlock: uv cannot resolve what is pinned (log: " in result.stderr
    assert "airlock-tiny was not found in the provided package locations" in result.stderr
    assert f"\n  '{started.root}/start.sh'\n      tries again; " in result.stderr
    assert not started.marker.exists()
    # Nor for python3, when the environment is active and has a version within the range.
    own = started.root / ".venv"
    result = started.run(VIRTUAL_ENV=str(own), PATH=f"{own}/bin:{started.bin}")
    assert result.returncode == 4

    started.pin(f"{requirements}# other\n")
    started.stub()
    assert kept.exists()


def test_an_environment_whose_base_python_is_gone_is_made_anew(started: Clone) -> None:
    # It is named by its version: an upgrade of python3 leaves a dangling link, not an interpreter
    # without packages.
    links = (started.root / ".venv/bin").glob("python*")
    (link,) = [link for link in links if link.readlink().is_absolute()]
    assert link.readlink() == BASE_PYTHON
    link.unlink()
    link.symlink_to("/no/longer/python3.11")
    assert started.stub()["prefix"] == str(started.root / ".venv")


@pytest.mark.parametrize("active", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_venv_that_is_not_ours_is_never_touched(clone: Clone, active: bool) -> None:
    theirs = environment(clone.root / ".venv", airlock_tiny="1.0" if active else "0.1")
    before = {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")}
    if active:  # then it is an environment like any other
        assert clone.stub(VIRTUAL_ENV=str(theirs))["prefix"] == str(theirs)
    else:
        result = clone.run("tiny")
        assert result.returncode == 4
        assert f"AIRLOCK_PYTHON='{theirs}/bin/python' '{clone.root}/start.sh' tiny" in result.stderr
        assert f"rm -r '{theirs}'" in result.stderr
    assert {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")} == before


def test_a_link_to_the_environment_of_another_clone_is_used_but_never_changed(
    started: Clone, tmp_path: Path
) -> None:
    theirs = started.root / ".venv"
    (tmp_path / "another").mkdir()
    other = Clone(tmp_path / "another")
    (other.root / ".venv").symlink_to(theirs)
    for name in ("requirements.txt", "constraints.txt"):
        shutil.copy(started.root / name, other.root / name)
    assert other.stub()["prefix"] in (str(theirs), str(other.root / ".venv"))
    with (other.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    before = {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")}
    result = other.run("tiny")
    assert result.returncode == 4
    assert f"\n  rm -r '{other.root}/.venv'\n" in result.stderr
    assert {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")} == before


def test_what_uv_remembers_of_an_earlier_python_there_does_not_lead_it_elsewhere(
    clone: Clone, tmp_path: Path
) -> None:
    python = clone.root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(BASE_PYTHON)  # as in an environment whose pyvenv.cfg is gone
    cache = str(tmp_path / "uv cache")
    command = [str(UV), "pip", "freeze", "--python", str(python)]
    assert "environment at: " in clone.execute(command, env={"UV_CACHE_DIR": cache}).stderr
    shutil.rmtree(clone.root / ".venv")
    assert clone.stub(UV_CACHE_DIR=cache, UV_OFFLINE="1")["prefix"] == str(clone.root / ".venv")
    assert (next((clone.root / ".venv/lib").glob("*/site-packages/airlock_tiny*"))).exists()


@pytest.mark.parametrize("what", ["a file", "a dangling link"])
def test_a_venv_that_is_no_folder_is_left_to_the_user(clone: Clone, what: str) -> None:
    own = clone.root / ".venv"
    own.touch() if what == "a file" else own.symlink_to("nowhere")
    result = clone.run()
    assert result.returncode == 4
    assert f"\n  rm -r '{own}'\n" in result.stderr


def test_a_home_that_is_nobodys_does_not_matter(clone: Clone) -> None:
    # Where not even root can create a folder.
    assert clone.stub(HOME="/proc/none")["prefix"] == str(clone.root / ".venv")


def test_on_a_terminal_uv_shows_how_far_it_is(clone: Clone) -> None:
    terminal, theirs = pty.openpty()
    command = [str(clone.root / "start.sh"), "tiny"]
    env = clone.env | {"TERM": "xterm"}
    with subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while data := os.read(terminal, 1 << 16):
                shown += data
    os.close(terminal)
    assert process.returncode == 0
    assert b"\x1b[2mInstalled \x1b[1m1 package\x1b[0m" in shown  # coloured, as in a terminal
    assert b"airlock: .venv is ready, in " in shown
