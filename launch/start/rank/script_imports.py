"""The imports of a script, read from its source, so that they are done once for all ranks.

The script and the modules beside it are the user's: they are read, never run, before a rank runs
them. They may ask for their rank, or touch CUDA, as soon as they are loaded. Modules that they
import from elsewhere are assumed safe to load early, unless known, or seen, not to be.
"""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rundir.config import ScriptConfig
from rundir.paths import ROOT

_FILE = Path(__file__).with_suffix(".toml")
# Libraries that must not be loaded in a process that others are forked from, and why.
LEFT_OUT: dict[str, str] = {
    name: row["why"]
    for row in tomllib.loads(_FILE.read_text(encoding="utf-8"))["left_out"]
    for name in row["names"]
}


@dataclass(frozen=True, slots=True)
class Import:
    """The statement `import name`, or `from name import members`."""

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """The statement `os.environ[name] = value`; later imports may read the variable."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The steps to take, in the order of the script, and those left out as (name, reason) pairs."""

    steps: tuple[Import | Setting, ...]
    left_out: tuple[tuple[str, str], ...]


def plan_imports(script: ScriptConfig, *, safe_to_fork: bool) -> ImportPlan:
    """Return the imports of `script` as it loads: torch, then its own in order, then `preload`.

    `safe_to_fork` leaves out libraries that a process to be forked must not load. With the word
    none in `preload` it is torch alone.
    """
    if "none" in script.preload:
        return ImportPlan((Import("torch"),), ())
    reader = _ScriptReader(script)
    wanted = [Import("torch"), *reader.steps]
    wanted += [Import(name) for name in script.preload if not name.startswith("-")]
    refused = {name[1:] for name in script.preload if name.startswith("-")}
    preloaded = {name.partition(".")[0] for name in script.preload}
    steps: dict[Import | Setting, None] = {}
    left_out: dict[str, str] = {}
    for step in wanted:
        if isinstance(step, Import):
            top = step.name.partition(".")[0]
            if refused & {top, step.name}:
                left_out[step.name] = f"--preload -{step.name}"
                continue
            if safe_to_fork and top in LEFT_OUT and top not in preloaded:
                left_out[top] = LEFT_OUT[top]
                continue
        steps[step] = None
    if reader.stopped_at:
        left_out["all that follows"] = f"{reader.stopped_at} sets variables that it may ask for"
    return ImportPlan(tuple(steps), tuple(left_out.items()))


class _ScriptReader:
    """A walk over a script, and the user's modules that it imports, in the order they would run."""

    def __init__(self, config: ScriptConfig) -> None:
        script = Path(config.path)
        self.steps: list[Import | Setting] = []
        self.stopped_at = ""  # from here on, what an import would find is unknown
        folder = Path.cwd() if config.module else script.resolve().parent
        own_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        elsewhere = [Path(entry) for entry in own_path if entry and entry != str(ROOT)]
        self._folders = [folder, *(path for path in elsewhere if not _holds_packages(path))]
        self._script = script
        self._seen: set[Path] = set()
        if config.module and folder in script.parents:
            self._read_own(config.module)  # after the packages that contain it
        package = config.module.rpartition(".")[0]
        self._read(script, package=config.module if script.stem == "__main__" else package)

    def _read(self, path: Path, *, package: str) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            body = ast.parse(path.read_bytes(), str(path)).body
        except (OSError, SyntaxError, ValueError):
            return  # the import itself will raise the error
        self._walk(body, path, package, is_certain=True)

    def _walk(
        self, body: Sequence[ast.stmt], path: Path, package: str, *, is_certain: bool
    ) -> None:
        """Read the statements of `body`; `is_certain` means that they run in every case."""
        for node in body:
            if self.stopped_at:
                return
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add(alias.name, ())
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, package)
                if base and base != "__future__":
                    self._add(base, tuple(alias.name for alias in node.names))
            elif isinstance(node, ast.If | ast.Try | ast.With):
                inside = list(_inside(node, is_main=path == self._script))
                keeps = isinstance(node, ast.With) or "__main__" in ast.unparse(node)[:40]
                self._walk(inside, path, package, is_certain=is_certain and keeps)
            else:
                self._note_environment(node, path, is_certain=is_certain)

    def _add(self, name: str, members: tuple[str, ...]) -> None:
        top = name.partition(".")[0]
        if any(_file(folder, top) or (folder / top).is_dir() for folder in self._folders):
            for module in [name, *(f"{name}.{member}" for member in members)]:
                self._read_own(module)
        elif top not in {*sys.stdlib_module_names, "airlock"} and not _is_airlocks(top):
            self.steps.append(Import(name, members))

    def _read_own(self, name: str) -> None:
        """Read a module of the user's, after the packages that contain it."""
        parts = name.split(".")
        for folder in self._folders:
            place = folder
            for number, part in enumerate(parts):
                file = _file(place, part)
                if file is not None:
                    is_package = file.name == "__init__.py"
                    self._read(file, package=".".join(parts[: number + is_package]))
                place /= part

    def _note_environment(self, node: ast.stmt, path: Path, *, is_certain: bool) -> None:
        """Record a statement that sets variables, to a literal or to something unknown."""
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=target, slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(value)),
            ) if is_certain and _is_environ(target):
                self.steps.append(Setting(name, value))
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=target, attr="setdefault"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
                )
            ) if is_certain and _is_environ(target):
                self.steps.append(Setting(name, os.environ.get(name, value)))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _ if _may_set_variables(node):
                self.stopped_at = f"{path.name}, line {node.lineno},"


def _inside(node: ast.If | ast.Try | ast.With, *, is_main: bool) -> Iterator[ast.stmt]:
    """Yield the statements that may run within a compound one, without its `except` clauses.

    An `except` is for when things are missing.
    """
    if isinstance(node, ast.Try):
        yield from (*node.body, *node.orelse, *node.finalbody)
        return
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        is_skipped = test.endswith("TYPE_CHECKING") or (not is_main and "__main__" in test)
        yield from () if is_skipped else node.body
        yield from node.orelse
        return
    yield from node.body


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the module of `from … import` with its dots resolved; empty if they lead nowhere."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    if not package or node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _file(folder: Path, name: str) -> Path | None:
    candidates = (path for path in (folder / name / "__init__.py", folder / f"{name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def _holds_packages(folder: Path) -> bool:
    """Return whether packages are installed in `folder`, which is then not the user's own."""
    return any(folder.glob("*.dist-info"))


def _is_airlocks(name: str) -> bool:
    """Return whether the clone has a package of that name, which no script means."""
    return (ROOT / name / "__init__.py").exists()


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _may_set_variables(node: ast.stmt) -> bool:
    """Return whether the statement writes to os.environ, as far as can be seen."""
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and _is_environ(part.value):
            if not isinstance(part.ctx, ast.Load):
                return True
        elif isinstance(part, ast.Call):
            name = ast.unparse(part.func)
            if name.endswith(
                ("environ.update", "environ.setdefault", "environ.pop", "os.putenv", "load_dotenv")
            ):
                return True
    return False
