"""The imports that packages allow themselves: read from the sources, and seen in real processes."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import subprocess
import sys
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
    "docs/tables",
)
OURS = {room.partition("/")[0] for room in ROOMS}
MOST_FILES = 25
ASK_THE_INBOX = ("inbox", "inbox/models", "monitor/api")
HEAVY = ("torch", "transformers", "numpy", "pyarrow", "peft", "tokenizers", "safetensors")


# What a package may import besides the standard library: packages of ours, and for some all else.
OF_OURS = {
    "rundir": {"rundir"},
    "ranks": {"ranks", "machine", "rundir"},
    "train": {"train", "ranks", "machine", "rundir"},
    "inbox": {"inbox", "machine", "rundir"},
    "monitor": {"monitor", "inbox", "rundir"},
}
OF_OTHERS: dict[str, set[str]] = {"rundir": set(), "inbox": {"click", "watchdog"}}


def sources(package: str) -> list[Path]:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, package
    return paths


@functools.cache
def modules_imported(path: Path, *, only_when_loaded: bool = False) -> frozenset[str]:
    """Return the names that a module imports with their modules, anywhere or while it is loaded."""
    names: set[str] = set()
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif not (only_when_loaded and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            todo += ast.iter_child_nodes(node)
    return frozenset(names)


def imported(path: Path, *, only_when_loaded: bool = False) -> set[str]:
    """Return the top-level packages that a module imports."""
    names = modules_imported(path, only_when_loaded=only_when_loaded)
    return {name.partition(".")[0] for name in names}


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


@functools.cache
def room_of(name: str) -> str | None:
    """Return the entry of ROOMS for a module imported as `name`; None for one that is not ours."""
    parts = name.split(".")
    if parts[0] not in OURS:
        return None
    rooms = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(room for room in rooms if (ROOT / room).is_dir())


def test_every_room_is_known_and_small_enough_to_look_through() -> None:
    rooms = {
        str(path.parent.relative_to(ROOT)) for name in OURS for path in (ROOT / name).rglob("*.py")
    }
    assert rooms == set(ROOMS)
    benchmarks = {path.parent.relative_to(ROOT).as_posix() for path in sources("benchmarks")}
    for room in (*ROOMS, *benchmarks):
        assert len(list((ROOT / room).glob("*.py"))) <= MOST_FILES, room


def test_the_architecture_page_lists_every_room_in_this_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE)
    assert [one for one in listed if one not in ("profiles", "api")] == list(ROOMS)


def test_no_two_packages_import_each_other() -> None:
    # Rooms import only those before them, so it is enough that each package's stand together.
    packages = [room.partition("/")[0] for room in ROOMS]
    assert len(list(itertools.groupby(packages))) == len(OURS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_that_stand_before_it(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    for path in (ROOT / room).glob("*.py"):
        for name in modules_imported(path):
            other = room_of(name)
            assert other is None or other in allowed, f"{path}: {name}"
            assert other is None or other.partition("/")[0] != "inbox" or room in ASK_THE_INBOX
            assert name.partition(".")[0] not in ("tests", "examples", "pytest"), path


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_and_which_process_runs_it(room: str) -> None:
    doc = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")))
    assert doc
    assert len(doc.splitlines()) >= 3


@pytest.mark.parametrize("package", OF_OURS)
def test_a_package_needs_no_more_than_it_may(package: str) -> None:
    for path in sources(package):
        names = imported(path)
        assert names & OURS <= OF_OURS[package], path
        if package in OF_OTHERS:
            assert names - OURS <= {*sys.stdlib_module_names, *OF_OTHERS[package]}, path
        assert package != "monitor" or not names & {*HEAVY, "pandas"} - {"numpy"}, path


def test_no_module_of_the_launcher_loads_anything_heavy() -> None:
    for path in sources("launch"):
        assert not imported(path, only_when_loaded=True) & {*HEAVY, "train"}, path


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
