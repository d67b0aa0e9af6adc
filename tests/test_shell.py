"""The start scripts themselves: where they find the clone, and what they pass on, and how."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clone import SOURCE, Clone

AWKWARD = (
    "a b",
    "*",
    "",
    "$HOME",
    "it's",
    "--set",
    'data.path="x y"',
    "back\\slash",
    "line\nbreak",
)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    made.fake_venv()
    return made


@pytest.mark.parametrize(("script", "first"), [("start.sh", "run"), ("airlock", "doctor")])
def test_every_argument_is_handed_over_as_it_was_typed(
    clone: Clone, script: str, first: str
) -> None:
    (clone.root.parent / "a file that * would match").touch()
    typed = ["doctor", *AWKWARD] if script == "airlock" else AWKWARD
    assert clone.stub(*typed, script=script)["argv"] == [first, *AWKWARD]


@pytest.mark.parametrize("script", ["start.sh", "start_single.sh", "start_4gpu.sh", "airlock"])
def test_a_script_is_found_through_links_from_any_folder(
    clone: Clone, tmp_path: Path, script: str
) -> None:
    elsewhere = tmp_path / "else where"
    (elsewhere / "launch").mkdir(parents=True)
    (tmp_path / "first").symlink_to(clone.root / script)
    (elsewhere / "second").symlink_to("../first")
    program = clone.stub(script="../else where/second", cwd=elsewhere, CDPATH=str(tmp_path))
    assert program["file"] == str(clone.root / "launch/__main__.py")


def test_start_works_when_given_to_a_shell(clone: Clone) -> None:
    result = clone.execute([str(clone.bin / "sh"), "start_4gpu.sh", "tiny"], clone.root)
    program = json.loads(result.stdout)
    assert program["argv"] == ["run", "tiny"]
    assert program["env"]["AIRLOCK_SCRIPT"] == "./start_4gpu.sh", "what can be typed again"


def test_the_users_own_train_and_launch_in_the_current_folder_are_not_imported(
    clone: Clone, tmp_path: Path
) -> None:
    hostile = tmp_path / "theirs"
    (hostile / "launch").mkdir(parents=True)
    for name in ("train.py", "launch/__init__.py", "launch/__main__.py", "json.py", "tomllib.py"):
        (hostile / name).write_text("raise SystemExit('the wrong module')")
    program = clone.stub(cwd=hostile)
    assert program["file"] == str(clone.root / "launch/__main__.py")
    assert str(hostile) not in program["path"]


def test_the_root_comes_first_on_pythonpath_and_the_users_entries_stay(clone: Clone) -> None:
    assert clone.stub()["env"]["PYTHONPATH"] == str(clone.root)
    python_path = clone.stub(PYTHONPATH="/one:/two")["env"]["PYTHONPATH"]
    assert python_path == f"{clone.root}:/one:/two"
    assert clone.stub(PYTHONPATH=python_path)["env"]["PYTHONPATH"] == python_path


def test_the_exit_status_is_that_of_what_was_started_with_no_shell_in_between(clone: Clone) -> None:
    assert clone.run(script="start_4gpu.sh", STUB_STATUS="3").returncode == 3
    assert clone.run(script="airlock", STUB_STATUS="21").returncode == 21
    clone.write("launch/__main__.py", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    # A shell in between would turn that into exit status 143.
    assert clone.run(script="start_single.sh").returncode == -15


@pytest.mark.parametrize(
    ("script", "given", "preset"),
    [
        ("start.sh", {}, {}),
        ("start_single.sh", {}, {"PROFILE": "14b", "NUM_GPUS": "1", "RUN": ("1", "1")}),
        # A test that the user turned off stays off, and the user's NUM_GPUS is another variable.
        (
            "start_single.sh",
            {"RUN_IMPORT_TEST": "0"},
            {"PROFILE": "14b", "NUM_GPUS": "1", "RUN": ("0", "1")},
        ),
        ("start_4gpu.sh", {"NUM_GPUS": "2"}, {"PROFILE": "32b", "NUM_GPUS": "4"}),
    ],
)
def test_each_script_presets_what_its_name_says(
    clone: Clone, script: str, given: dict[str, str], preset: dict[str, Any]
) -> None:
    program = clone.stub("--lr", "1", script=script, **given)
    assert program["argv"] == ["run", "--lr", "1"]
    expected = {f"AIRLOCK_PRESET_{name}": preset[name] for name in preset if name != "RUN"}
    expected["AIRLOCK_SCRIPT"] = str(clone.root / script)  # as it was typed
    tests = ("RUN_IMPORT_TEST", "RUN_SINGLE_GPU_TEST")
    expected |= dict(zip(tests, preset.get("RUN", ()), strict=False))
    env = program["env"]
    assert {k: env[k] for k in env if k.startswith(("AIRLOCK_", "RUN_"))} == expected
    assert env.get("NUM_GPUS") == given.get("NUM_GPUS")


def test_a_clone_in_a_path_with_a_colon_is_refused_in_words(clone: Clone) -> None:
    clone.root = clone.root.rename(clone.root.with_name("a:b"))
    result = clone.run()
    assert result.returncode == 4
    assert "a:b: Python can use no path with a colon" in result.stderr


@pytest.fixture
def tests_in_clone(clone: Clone) -> Clone:
    """Return a clone with a test of each tier, to be run with the Python that runs this test."""
    clone.env |= {"AIRLOCK_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
    clone.env["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "0"  # no second process for six empty tests
    pyproject = clone.root / "pyproject.toml"
    clone.write("pyproject.toml", pyproject.read_text().replace('"airlock-tiny>=1.0"', ""))
    clone.write(
        "tests/test_tiers.py",
        "import pytest, launch\n"
        "def test_short(): pass\n"
        "@pytest.mark.runs\n@pytest.mark.sample\ndef test_sample(): pass\n"
        "@pytest.mark.runs\ndef test_runs(): pass\n"
        "@pytest.mark.runs\n@pytest.mark.long\n@pytest.mark.sample\ndef test_repeats(): pass\n"
        "@pytest.mark.long\ndef test_long(): pass\n"
        "@pytest.mark.gpu\ndef test_gpu(): pass\n",
    )
    clone.write(
        "tests/conftest.py",
        "def pytest_addoption(parser): parser.addoption('--only', action='append')\n"
        "def pytest_report_header(config): return f'only {config.getoption(\"only\")}'\n",
    )
    return clone


@pytest.mark.runs
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"short", "sample"}),
        pytest.param(["--runs"], {"runs"}, marks=pytest.mark.long),
        # A part may be named like a folder, which pytest would take for one of its own arguments.
        (["--all", "--only", "launch", "--only", "hangs"], {"long", "repeats", "gpu"}),
        pytest.param(
            ["tests/test_tiers.py", "--all", "-k", "long or short"],
            {"long", "repeats"},
            marks=pytest.mark.long,
        ),
        (["-m", "gpu"], {"gpu"}),
    ],
)
def test_the_test_script_runs_the_tier_and_the_tests_asked_for(
    tests_in_clone: Clone, tmp_path: Path, arguments: list[str], expected: set[str]
) -> None:
    result = tests_in_clone.run("-v", *arguments, script="test.sh", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    passed = [line for line in result.stdout.splitlines() if "PASSED" in line]
    assert {re.findall(r"::test_(\w+)", line)[0] for line in passed} == expected
    assert ("only ['launch', 'hangs']" in result.stdout) == ("--only" in arguments)


def test_the_test_script_tells_its_tiers_without_an_environment(clone: Clone) -> None:
    shutil.rmtree(clone.root / ".venv")
    help_text = clone.run("--help", script="test.sh").stdout
    assert all(f"./test.sh {tier}" in help_text for tier in ("--runs", "--all"))
    assert "set -eu" not in help_text
    assert not (clone.root / ".venv").exists()


def test_help_needs_no_environment(clone: Clone) -> None:
    shutil.rmtree(clone.root / ".venv")
    (clone.bin / "python3").unlink()
    typed = {"start.sh": "start", "start_single.sh": "start_single", "start_4gpu.sh": "start_4gpu"}
    typed |= {"airlock": "airlock", "airlock run": "run", "airlock plan": "plan"}
    for words, name in typed.items():
        script, *arguments = words.split()
        option = "-h" if words == "start.sh" else "--help"
        result = clone.run(*arguments, option, script=script, VIRTUAL_ENV="/nowhere")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == (SOURCE / f"setup/help/{name}.txt").read_text()


@pytest.mark.parametrize("script", ["start.sh", "start_single.sh", "start_4gpu.sh"])
def test_the_help_of_a_start_script_names_what_it_presets_and_what_the_environment_does(
    clone: Clone, script: str
) -> None:
    help_text = " ".join(clone.run("--help", script=script).stdout.split())
    assert help_text.startswith(f"Usage: ./{script} ")
    first = help_text.partition("A profile that names no training data")[0]
    preset = {
        "start.sh": ("32b, on all visible GPUs",),
        "start_single.sh": ("14b, 1 rank", "RUN_IMPORT_TEST=1", "RUN_SINGLE_GPU_TEST=1"),
        "start_4gpu.sh": ("32b and 4 ranks",),
    }
    for text in preset[script]:
        assert text in first
    env = clone.stub(script=script)["env"]
    for name, value in env.items():
        if name.startswith(("AIRLOCK_PRESET_", "RUN_")):
            assert value in first
    for name in ("NUM_GPUS=N", "RUN_IMPORT_TEST=1", "RUN_SINGLE_GPU_TEST=1", "--demo"):
        assert name in help_text


@pytest.mark.parametrize("arguments", [["my_train.py", "--help"], ["tiny", "-h"]])
def test_help_that_is_anothers_is_handed_over(clone: Clone, arguments: list[str]) -> None:
    assert clone.stub(*arguments)["argv"] == ["run", *arguments]


@pytest.mark.runs
def test_the_test_script_fails_when_a_test_does(tests_in_clone: Clone) -> None:
    tests_in_clone.write("tests/test_bad.py", "def test_bad(): assert False\n")
    assert tests_in_clone.run("tests/test_bad.py", script="test.sh").returncode == 1


@pytest.fixture
def ci(clone: Clone) -> Clone:
    """Return a clone whose .venv only logs the commands of CI; it fails for those in FAILING."""
    python = clone.root / ".venv/bin/python"
    stub = '#!/bin/sh\ncase "$*" in *"${FAILING:-nothing}"*) exit 7; esac\n'
    for tool in (python, python.with_name("shellcheck")):
        tool.unlink(missing_ok=True)
        tool.write_text(f'{stub}echo "ran {tool.name} $*"\n')
        tool.chmod(0o755)
    return clone


def test_ci_runs_every_check_in_the_clones_own_environment(ci: Clone, tmp_path: Path) -> None:
    active = {"VIRTUAL_ENV": "/nowhere", "CONDA_PREFIX": "/nowhere", "AIRLOCK_PYTHON": "/nowhere"}
    result = ci.run(script=".ci/run", cwd=tmp_path, **active)
    assert result.returncode == 0, result.stderr
    ran = [line.removeprefix("ran ") for line in result.stdout.splitlines() if "ran" in line]
    python = "python -P -m"
    starts = [f"{python} ruff check", f"{python} ruff format --check", f"{python} mypy"]
    starts += ["shellcheck", f"{python} pytest -m not long", f"{python} pytest -m runs"]
    assert [line.startswith(start) for line, start in zip(ran, starts, strict=True)] == [True] * 6


def test_ci_gives_shellcheck_every_script_of_the_project(ci: Clone) -> None:
    if not (SOURCE / ".git").exists():
        pytest.skip("what is the project's own, git tells, and this is no clone")
    listed = re.search(r"ran shellcheck -x (.*)", ci.run(script=".ci/run").stdout)
    assert listed
    is_ours = re.compile(r"\.(sh|bash)$|^airlock$|^\.ci/")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert set(filter(is_ours.search, tracked)) == set(listed[1].split())


@pytest.mark.parametrize(
    ("failing", "step"),
    [
        *(("ruff check", "ruff check"), ("ruff format", "ruff format"), ("mypy", "mypy")),
        *(("airlock", "shellcheck"), ("not long and not gpu and (sample", "./test.sh")),
        ("runs and not sample", "./test.sh --runs"),
    ],
)
def test_ci_stops_at_the_step_that_fails_with_its_status(
    ci: Clone, failing: str, step: str
) -> None:
    result = ci.run(script=".ci/run", FAILING=failing)
    assert result.returncode == 7
    announced = [line for line in result.stdout.splitlines() if line.startswith("== ")]
    assert step in announced[-1]
