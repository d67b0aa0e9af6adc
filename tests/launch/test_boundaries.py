"""What may import what: read from the sources, and seen in processes of their own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {path.parent.name for path in ROOT.glob("*/__init__.py")}
HEAVY = ("torch", "transformers", "numpy", "pyarrow", "peft", "tokenizers", "safetensors")


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


def imported(path: Path, *, only_when_loaded: bool = False) -> Iterator[str]:
    """The top-level packages that a module imports, anywhere or only while it is loaded."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield (node.module or "").partition(".")[0]
        elif not (only_when_loaded and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            todo += ast.iter_child_nodes(node)


def python(program: str, environ: dict[str, str], cwd: Path = ROOT) -> str:
    """What `program` prints, run as Airlock's own programs are."""
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("path", sources("rundir"), ids=lambda path: path.stem)
def test_the_run_folder_needs_only_the_standard_library(path: Path) -> None:
    assert set(imported(path)) <= {*sys.stdlib_module_names, "rundir"}


@pytest.mark.parametrize("path", sources("train"), ids=lambda path: path.stem)
def test_training_needs_none_of_the_launcher(path: Path) -> None:
    is_command_line = path.name == "__main__.py"  # `python -m train`, which no module imports
    assert set(imported(path)) & OURS <= ({"launch"} if is_command_line else {"train", "rundir"})


@pytest.mark.parametrize("path", sources("launch"), ids=lambda path: path.stem)
def test_no_module_of_the_launcher_loads_anything_heavy(path: Path) -> None:
    assert not set(imported(path, only_when_loaded=True)) & {*HEAVY, "train"}


@pytest.mark.parametrize("package", ["launch", "train", "rundir"])
def test_what_is_imported_when_a_module_loads_needs_no_tests_or_examples(package: str) -> None:
    for path in sources(package):
        assert not set(imported(path)) & {"tests", "examples", "pytest"}, path


@pytest.mark.parametrize(
    "module",
    [
        "launch.__main__",
        "launch.run",
        "launch.supervise",
        "launch.rank",
        "launch.agent",
        "launch.plain",
        "launch.child",
        "rundir.events",
        "rundir.status",
        "diagnostics.doctor.command",
        "diagnostics.doctor.at_the_end",
    ],
)
def test_the_launchers_own_process_never_loads_torch(module: str, environ: dict[str, str]) -> None:
    program = f"import sys, {module}; print(*set({HEAVY!r}) & sys.modules.keys())"
    assert python(program, environ).strip() == ""


@pytest.mark.parametrize("module", ["train.prepare", "train.template"])
def test_the_data_are_prepared_without_torch(module: str, environ: dict[str, str]) -> None:
    program = f"import sys, {module}; print({{'torch', 'transformers'}} & set(sys.modules))"
    assert python(program, environ).strip() == "set()"


def test_importing_a_heavy_library_would_be_seen(environ: dict[str, str]) -> None:
    program = f"import sys, safetensors; print(*set({HEAVY!r}) & sys.modules.keys())"
    assert "safetensors" in python(program, environ)


@pytest.mark.runs
def test_the_launcher_is_the_clones_wherever_it_is_started(
    environ: dict[str, str], tmp_path: Path
) -> None:
    for package in ("launch", "train", "rundir"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('not ours')\n")
    (tmp_path / "diagnostics.py").write_text("raise SystemExit('not ours')\n")
    program = (
        "import launch, train, rundir, diagnostics\n"
        "for one in launch, train, rundir, diagnostics: print(one.__file__)"
    )
    files = python(program, environ, cwd=tmp_path).splitlines()
    assert len(files) == 4
    assert all(Path(file).is_relative_to(ROOT) for file in files)
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "launch", "run", "tiny", "--dry-run"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tiny" in shown.stdout
