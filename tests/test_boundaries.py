"""The imports that packages allow themselves: read from the sources, and seen in real processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Every room, ordered so that each imports only those before it.
ROOMS = (
    "rundir/files",
    "rundir",
    "rundir/card",
    "machine",
    "machine/gpus",
    "machine/cores",
    "machine/memory",
    "machine/processes",
    "state",
    "doctor/logs",
    "doctor/runs",
    "doctor/outside",
    "doctor",
    "setup",
    "ranks",
    "train/files",
    "train/chat",
    "train/data/formats",
    "train/data",
    "train/model",
    "train/batches",
    "train/stream",
    "train/update",
    "train/evaluation",
    "train/step",
    "train",
    "train/trace",
    "launch/start/gate",
    "launch/files",
    "launch/track",
    "launch/config",
    "launch/live",
    "launch/clean",
    "launch/plan",
    "launch/checks",
    "launch/start",
    "launch/start/rank",
    "launch/run/supervise",
    "launch/start/agent",
    "launch/run",
    "launch/commands",
    "launch",
    "diagnostics/probes",
    "diagnostics",
    "inbox/models",
    "inbox",
    "monitor/http",
    "monitor/runs",
    "monitor/metrics",
    "monitor/answers",
    "monitor/pages",
    "monitor/api",
    "monitor",
    "monitor/report",
)
OURS = {room.partition("/")[0] for room in ROOMS}
MOST_FILES = 25
HEAVY = ("torch", "transformers", "numpy", "pyarrow", "peft", "tokenizers", "safetensors")


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


def imported(path: Path, *, only_when_loaded: bool = False) -> Iterator[str]:
    """Yield the top-level packages that a module imports, anywhere or only while it is loaded."""
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
    """Return what `program` prints, run as Airlock's own programs are."""
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


def room_of(name: str) -> str | None:
    """Return the entry of ROOMS for a module imported as `name`; None for one that is not ours."""
    path = ROOT.joinpath(*name.split("."))
    for folder in (path, *path.parents):
        inside = folder.is_dir() and folder.is_relative_to(ROOT) and folder != ROOT
        if inside and folder.relative_to(ROOT).parts[0] in OURS:
            return str(folder.relative_to(ROOT))
    return None


def modules_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_is_known_and_small_enough_to_look_through() -> None:
    found = {
        str(path.parent.relative_to(ROOT)) for name in OURS for path in (ROOT / name).rglob("*.py")
    }
    assert found == set(ROOMS)
    benchmarks = {path.parent.relative_to(ROOT).as_posix() for path in sources("benchmarks")}
    for room in (*ROOMS, *benchmarks):
        assert len(list((ROOT / room).glob("*.py"))) <= MOST_FILES, room


def test_the_architecture_page_lists_every_room_in_this_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE)
    assert [one for one in listed if one not in ("profiles", "api")] == list(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_that_stand_before_it(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    for path in (ROOT / room).glob("*.py"):
        for name in modules_imported(path):
            other = room_of(name)
            assert other is None or other in allowed, f"{path}: {name}"


@pytest.mark.parametrize("path", sources("monitor"), ids=lambda path: path.stem)
def test_the_monitor_needs_run_folders_and_inboxes_and_nothing_that_makes_them(path: Path) -> None:
    assert set(imported(path)) & OURS <= {"rundir", "inbox", "monitor"}
    assert not set(imported(path)) & {"torch", "transformers", "pandas", "pyarrow"}


@pytest.mark.parametrize("room", [room for room in ROOMS if not room.startswith("monitor")])
def test_nothing_imports_the_monitor(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        assert "monitor" not in set(imported(path)), path


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_and_which_process_runs_it(room: str) -> None:
    told = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")))
    assert told
    assert len(told.splitlines()) >= 3


@pytest.mark.parametrize("path", sources("train"), ids=lambda path: path.stem)
def test_training_needs_none_of_the_launcher(path: Path) -> None:
    assert set(imported(path)) & OURS <= {"train", "ranks", "machine", "rundir"}


TWO = [(one, other) for one in sorted(OURS) for other in sorted(OURS) if one < other]


@pytest.mark.parametrize(("one", "other"), TWO)
def test_no_two_packages_import_each_other(one: str, other: str) -> None:
    assert not (imports(one, other) and imports(other, one))


def imports(package: str, other: str) -> bool:
    return any(other in set(imported(path)) for path in sources(package))


@pytest.mark.parametrize("path", sources("ranks"), ids=lambda path: path.stem)
def test_a_rank_as_a_process_needs_none_of_the_trainer(path: Path) -> None:
    assert set(imported(path)) & OURS <= {"ranks", "machine", "rundir"}


@pytest.mark.parametrize("path", sources("inbox"), ids=lambda path: path.stem)
def test_the_inbox_needs_run_folders_and_nothing_that_makes_them(path: Path) -> None:
    ours = {"rundir", "machine", "inbox"}
    assert set(imported(path)) <= {*sys.stdlib_module_names, *ours, "click", "watchdog"}


@pytest.mark.parametrize(
    "room",
    [room for room in ROOMS if room not in ("inbox", "inbox/models", "rundir", "monitor/api")],
)
def test_nothing_but_the_monitor_imports_the_inbox(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        assert "inbox" not in set(imported(path)), path


@pytest.mark.parametrize("path", sources("launch"), ids=lambda path: path.stem)
def test_no_module_of_the_launcher_loads_anything_heavy(path: Path) -> None:
    assert not set(imported(path, only_when_loaded=True)) & {*HEAVY, "train"}


@pytest.mark.parametrize("package", sorted(OURS))
def test_what_is_imported_when_a_module_loads_needs_no_tests_or_examples(package: str) -> None:
    for path in sources(package):
        assert not set(imported(path)) & {"tests", "examples", "pytest"}, path


@pytest.mark.parametrize(
    "module",
    [
        "launch.__main__",
        "launch.run.launched",
        "launch.run.supervise.supervisor",
        "launch.start.rank.rank",
        "launch.start.agent.agent",
        "launch.run.plain",
        "machine.processes.child",
        "rundir.events",
        "rundir.status",
        "doctor.command",
        "launch.run.supervise.ask_doctor",
        "train.data.sources",
    ],
)
def test_the_launchers_own_process_never_loads_torch(module: str, environ: dict[str, str]) -> None:
    program = f"import sys, {module}; print(*set({HEAVY!r}) & sys.modules.keys())"
    assert python(program, environ).strip() == ""


@pytest.mark.parametrize("module", ["train.prepare", "train.chat.template"])
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
    for package in ("launch", "train", "rundir", "machine", "setup", "state"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('not ours')\n")
    (tmp_path / "diagnostics.py").write_text("raise SystemExit('not ours')\n")
    program = (
        "import launch, train, rundir, machine, setup, state, diagnostics\n"
        "for one in launch, train, rundir, machine, setup, state, diagnostics: print(one.__file__)"
    )
    files = python(program, environ, cwd=tmp_path).splitlines()
    assert len(files) == 7
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
