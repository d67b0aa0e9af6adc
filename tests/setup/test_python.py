"""The Python that the scripts choose, of those that exist."""

import venv
from pathlib import Path

import pytest

from tests.clone import BASE_PYTHON, Clone, environment, tool

OLD_PYTHON = f"""#!/bin/sh
while [ "$1" = -I ] || [ "$1" = -B ]; do shift; done
exec {BASE_PYTHON} -c '
import platform, runpy, sys
platform.python_version = lambda: "3.10.18"
sys.version_info = (3, 10, 18, "final", 0)
sys.argv = sys.argv[1:]
if sys.argv[0] == "-c":
    exec(sys.argv[1])
else:
    runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""

NEEDS_TWO = """
[project]
requires-python = ">=3.11,<3.14"
dependencies = ["airlock-tiny>=1.0", "airlock-other"]
"""


def test_an_active_environment_with_all_that_is_needed_is_used_as_it_is(
    clone: Clone, tmp_path: Path
) -> None:
    active = environment(tmp_path / "active", airlock_tiny="1.5")
    assert clone.stub(VIRTUAL_ENV=str(active))["prefix"] == str(active)
    assert clone.stub(CONDA_PREFIX=str(active))["prefix"] == str(active)
    assert not (clone.root / ".venv").exists()


def test_an_active_environment_that_lacks_something_is_left_to_the_user(
    clone: Clone, tmp_path: Path
) -> None:
    active = environment(tmp_path / "active", airlock_tiny="0.9")
    clone.write("pyproject.toml", NEEDS_TWO)
    before = sorted(active.rglob("*"))
    result = clone.run("a profile", VIRTUAL_ENV=str(active))
    assert result.returncode == 4
    assert "  airlock-tiny>=1.0 (0.9 is installed)\n" in result.stderr
    assert "  airlock-other (not installed)\n" in result.stderr
    packages = "'airlock-tiny>=1.0' airlock-other"
    assert f"  {active}/bin/python -m pip install {packages}\n" in result.stderr
    assert f"  AIRLOCK_ENV=own '{clone.root}/start.sh' 'a profile'\n" in result.stderr
    assert sorted(active.rglob("*")) == before
    assert not (clone.root / ".venv").exists()


@pytest.mark.long
def test_the_install_command_that_is_offered_makes_the_environment_serve(
    clone: Clone, tmp_path: Path
) -> None:
    active = tmp_path / "active"
    venv.create(active, symlinks=True, with_pip=True)
    result = clone.run(VIRTUAL_ENV=str(active))
    assert "  airlock-tiny>=1.0 (not installed)\n" in result.stderr
    command = next(line for line in result.stderr.splitlines() if " -m pip install " in line)
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(clone.root.parent / "wheels")}
    assert clone.execute([str(clone.bin / "sh"), "-c", command], env=wheels).returncode == 0
    result = clone.run(VIRTUAL_ENV=str(active))
    assert "airlock-tiny" not in result.stderr


def test_a_hostile_current_folder_does_not_mislead_the_check(
    started: Clone, tmp_path: Path
) -> None:
    active = environment(tmp_path / "active", airlock_tiny="1.0")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("re", "tomllib", "pathlib", "shlex", "json"):
        (hostile / f"{name}.py").write_text("raise SystemExit('the wrong module')")
        # Nor does a module of launch/ with the name of one in the standard library.
        started.write(f"launch/{name}.py", "raise SystemExit('the wrong module')")
    assert started.stub(cwd=hostile, VIRTUAL_ENV=str(active))["prefix"] == str(active)
    started.write("constraints.txt", "# other, so that .venv is brought up to date\n")
    assert started.stub(cwd=hostile)["prefix"] == str(started.root / ".venv")


def test_airlock_env_own_passes_an_active_environment_by(started: Clone, tmp_path: Path) -> None:
    active = environment(tmp_path / "active", airlock_tiny="1.0")
    program = started.stub(VIRTUAL_ENV=str(active), AIRLOCK_ENV="own")
    assert program["prefix"] == str(started.root / ".venv")
    result = started.run(AIRLOCK_ENV="mine")
    assert (result.returncode, "AIRLOCK_ENV=mine" in result.stderr) == (4, True)
    result = started.run(VIRTUAL_ENV="/gone")
    assert (result.returncode, "/gone has no bin/python" in result.stderr) == (4, True)


def test_the_clones_own_environment_is_used_when_it_is_active(started: Clone) -> None:
    own = started.root / ".venv"
    path = f"{own}/bin:{started.bin}"
    assert started.stub(VIRTUAL_ENV=str(own), PATH=path)["prefix"] == str(own)


def test_airlock_python_comes_before_all_else(started: Clone, tmp_path: Path) -> None:
    named = environment(tmp_path / "named", airlock_tiny="1.0")
    active = environment(tmp_path / "active", airlock_tiny="1.0")
    for name in (f"{named}/bin/python", "named/bin/python"):
        program = started.stub(AIRLOCK_PYTHON=name, VIRTUAL_ENV=str(active), AIRLOCK_ENV="own")
        assert program["prefix"] == str(named)


def test_airlock_python_that_does_not_serve_is_an_error(started: Clone, tmp_path: Path) -> None:
    lacking = environment(tmp_path / "lacking") / "bin/python"
    result = started.run(AIRLOCK_PYTHON=str(lacking))
    assert result.returncode == 4
    assert f"AIRLOCK_PYTHON={lacking} lacks:\n  airlock-tiny>=1.0 (not installed)" in result.stderr

    old = tool(tmp_path / "old", OLD_PYTHON)
    result = started.run(AIRLOCK_PYTHON=str(old))
    assert result.returncode == 4
    assert "python 3.10.18 (needs >=3.11,<3.14)" in result.stderr
    assert "pip install" not in result.stderr

    result = started.run(AIRLOCK_PYTHON="/no/such/python")
    assert result.returncode == 4
    assert "AIRLOCK_PYTHON=/no/such/python is no program" in result.stderr


def test_python3_with_all_that_is_needed_is_used_without_making_anything(
    clone: Clone, tmp_path: Path
) -> None:
    system = environment(tmp_path / "system", airlock_tiny="1.0")
    path = f"{system}/bin:{clone.bin}"
    assert clone.stub(PATH=path)["prefix"] == str(system)
    assert not (clone.root / ".venv").exists()
    assert clone.stub(PATH=path, AIRLOCK_ENV="own")["prefix"] == str(clone.root / ".venv")


def test_the_test_script_asks_an_active_environment_for_the_development_tools_too(
    clone: Clone, tmp_path: Path
) -> None:
    active = environment(tmp_path / "active", airlock_tiny="1.0")
    result = clone.run(script="test.sh", VIRTUAL_ENV=str(active))
    assert result.returncode == 4
    assert "lacks:\n  pytest>=8 (not installed)\nType" in result.stderr
    assert "pip install 'pytest>=8'\n" in result.stderr


NEEDS = """
[project]
requires-python = ">=3.11,<3.14"
dependencies = ["airlock-tiny>=1.0"]
[project.optional-dependencies]
script = ["a-framework>=2"]
train = ["a-framework>=3", "a-trainer"]
"""
LAUNCHER: set[str] = set()
SCRIPT, TRAINER = {"a-framework>=2"}, {"a-framework>=3", "a-trainer"}
ASKED = {
    "my_train.py --lr 1": SCRIPT,
    "--num-gpus 2 -m package.train tiny": SCRIPT,
    "--num-gpus 2 tiny --config my.py": TRAINER,
    "": TRAINER,
    "airlock run my_train.py": SCRIPT,
    "airlock run tiny": TRAINER,
    "airlock plan 32b": TRAINER,
    "airlock ps": LAUNCHER,
    "airlock stop my_train.py": LAUNCHER,
    "airlock": LAUNCHER,
}


@pytest.mark.parametrize("typed", ASKED)
def test_only_what_was_typed_decides_what_is_asked_for(
    clone: Clone, tmp_path: Path, typed: str
) -> None:
    active = environment(tmp_path / "active", airlock_tiny="0.1")
    clone.write("pyproject.toml", NEEDS)
    clone.write("profiles/tiny.toml", "")
    words = typed.split()
    script = words.pop(0) if words[:1] == ["airlock"] else "start.sh"
    result = clone.run(*words, script=script, VIRTUAL_ENV=str(active))
    lines = result.stderr.partition("lacks:\n")[2].partition("Type:")[0].splitlines()
    lacking = {line.strip().partition(" (")[0] for line in lines}
    assert lacking == {"airlock-tiny>=1.0", *ASKED[typed]}
    (command,) = [line for line in result.stderr.splitlines() if " -m pip install " in line]
    assert {word.strip("'") for word in command.split()[4:]} == lacking


def test_without_a_python_and_uv_the_range_needed_is_said(clone: Clone) -> None:
    (clone.bin / "python3").unlink()
    (clone.bin / "uv").unlink()
    result = clone.run()
    assert result.returncode == 4
    assert "no Python to make .venv with: needed is >=3.11,<3.14\n" in result.stderr
    assert "apt install" in result.stderr
    assert f"then: {clone.root}/start.sh\n" in result.stderr


def test_a_python_that_only_uv_knows_of_serves(clone: Clone) -> None:
    (clone.bin / "python3").unlink()
    program = clone.stub(UV_PYTHON_SEARCH_PATH=str(BASE_PYTHON.parent))
    assert program["prefix"] == str(clone.root / ".venv")


def test_where_no_python_serves_what_uv_says_of_each_is_shown(clone: Clone) -> None:
    tool(clone.bin / "python3", OLD_PYTHON)
    tool(clone.bin / "python3.12", "#!/bin/sh\necho 'pyenv: python3.12: not found' >&2\nexit 127\n")
    result = clone.run(UV_PYTHON_DOWNLOADS="never")
    assert result.returncode == 4
    assert "airlock: uv cannot make .venv (log: " in result.stderr
    assert "pyenv: python3.12: not found" in result.stderr
    assert f"\n  '{clone.root}/start.sh'\n      tries again; put a Python" in result.stderr


def test_a_later_python_serves_where_python3_does_not(clone: Clone) -> None:
    tool(clone.bin / "python3", OLD_PYTHON)
    (clone.bin / "python3.11").symlink_to(BASE_PYTHON)
    assert clone.stub()["prefix"] == str(clone.root / ".venv")
