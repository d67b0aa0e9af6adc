"""The imports of a script are read from its source, in order, and none of it is run."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from launch.start.rank.script_imports import Import, Setting, plan_imports
from rundir.config import ScriptConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.setenv("ALREADY", "mine")
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_a_modules_relative_imports_are_read_after_the_packages_that_contain_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"pkg/__init__": "import numpy", "pkg/data": "import json, yaml"}
    files["pkg/train"] = "import torch\nfrom .data import rows\nimport tqdm"
    write(folder, files)
    monkeypatch.chdir(folder)
    config = ScriptConfig(path=str(folder / "pkg/train.py"), module="pkg.train")
    planned = plan_imports(config, safe_to_fork=True).steps
    assert [step.name for step in planned] == ["torch", "numpy", "yaml", "tqdm"]


def steps(folder: Path, script: str, *preload: str) -> list[Import | Setting]:
    write(folder, {"script": script})
    config = ScriptConfig(path=str(folder / "script.py"), preload=preload)
    return list(plan_imports(config, safe_to_fork=True).steps)


def test_torch_comes_first_and_the_rest_as_written(folder: Path) -> None:
    script = """
    import os, sys
    import b.c, a as other
    from numpy.linalg import norm, inv
    import torch
    def later():
        import never
    class Late:
        import never
    """
    assert steps(folder, script) == [
        Import("torch"),
        Import("b.c"),
        Import("a"),
        Import("numpy.linalg", ("norm", "inv")),
    ]


BRANCHES = """
from typing import TYPE_CHECKING
try:
    import fast
except ImportError:
    import slow
else:
    import more
if TYPE_CHECKING:
    import never
else:
    import always
with open("x"):
    import inside
if __name__ == "__main__":
    import cli
"""
OWN_MODULES = {
    "helper": "import einops\nif __name__ == '__main__':\n    import never\n",
    "pack/__init__": "from . import part\nfrom .deep import thing\n",
    "pack/part": "import first\nimport pack\n",
    "pack/deep/thing": "from ..part import x\nimport second\n",
    "lib/mine": "import third\nraise SystemExit\n",
    "broken": "this is no Python",
}
# Files beside a script, the script, and what is imported early.
CASES: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "branches that may run": ({}, BRANCHES, ["fast", "more", "always", "inside", "cli"]),
    "the user's own modules, which are read and never imported": (
        OWN_MODULES,
        "import helper, pack.part\nimport mine, broken\nimport numpy as np\n",
        ["einops", "first", "second", "third", "numpy"],
    ),
    "a folder of installed packages, which is not the user's own": (
        {"lib/numpy": "import never", "lib/numpy-2.dist-info/none": ""},
        "import numpy",
        ["numpy"],
    ),
    "names of Airlock's packages, which are never libraries": (
        {},
        "import train, launch.commands.cli, airlock\nfrom rundir import paths",
        [],
    ),
    "reading variables": (
        {},
        'import os\nrank = int(os.environ["RANK"])\nx = os.environ.get("X")\nimport b\n',
        ["b"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_script_imports_in_every_case_is_found(folder: Path, case: str) -> None:
    files, script, expected = CASES[case]
    write(folder, files)
    assert [step.name for step in steps(folder, script)] == ["torch", *expected]


def test_what_is_not_safe_to_fork_is_left_out_unless_asked_for(folder: Path) -> None:
    write(folder, {"script": "import bitsandbytes, numpy, deepspeed.ops"})
    config = ScriptConfig(path=str(folder / "script.py"), preload=("-numpy", "einops"))
    plan = plan_imports(config, safe_to_fork=True)
    assert plan.steps == (Import("torch"), Import("einops"))
    assert [name for name, _ in plan.left_out] == ["bitsandbytes", "numpy", "deepspeed"]
    in_rank = plan_imports(config, safe_to_fork=False)
    assert [step.name for step in in_rank.steps] == [
        "torch",
        "bitsandbytes",
        "deepspeed.ops",
        "einops",
    ]
    asked = ScriptConfig(path=config.path, preload=("bitsandbytes",))
    assert Import("bitsandbytes") in plan_imports(asked, safe_to_fork=True).steps


def test_variables_are_set_where_the_script_sets_them(folder: Path) -> None:
    script = """
    import os
    from os import environ
    import a
    os.environ["X"] = "1"
    environ.setdefault("ALREADY", "else")
    import b
    """
    assert steps(folder, script) == [
        Import("torch"),
        Import("a"),
        Setting("X", "1"),
        Setting("ALREADY", "mine"),
        Import("b"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["X"] = os.environ["LOCAL_RANK"]',
        'os.environ.update({"X": "1"})',
        'if args.offline:\n    os.environ["X"] = "1"',
        'for name in ("X", "Y"):\n    os.environ[name] = "1"',
        'del os.environ["X"]',
        "load_dotenv()",
    ],
)
def test_after_variables_that_are_not_known_nothing_more_is_imported_early(
    folder: Path, line: str
) -> None:
    write(folder, {"script": f"import os, a\n{line}\nimport b\n"})
    plan = plan_imports(ScriptConfig(path=str(folder / "script.py")), safe_to_fork=True)
    assert plan.steps == (Import("torch"), Import("a"))
    assert plan.left_out[0][0] == "all that follows"
    assert "script.py, line " in plan.left_out[0][1]
