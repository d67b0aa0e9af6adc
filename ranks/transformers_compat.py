"""A quicker import of transformers: what it reads all of its model files for is remembered.

transformers 5 learns the names that it offers by reading its 2,500 model files at each import. That
takes half a second, and on a network filesystem far longer. The names are kept in the cache until
the name, size, time or inode of one of these files differs. tests/test_compat.py looks for the
names in `PRIVATE`; a version without them reads its files as ever.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from rundir.atomic import write_text
from rundir.files.reading import json_object
from rundir.paths import cache_folder

_MODULE = "transformers.utils.import_utils"
PRIVATE = (f"{_MODULE}:define_import_structure",)
_SETTLED_S = 2.0  # a file written since could change again within its time stamp

# The names in each module, by the packages that the module needs.
Structure = dict[frozenset[str], dict[str, set[str]]]


class _Finder(MetaPathFinder):
    """The finder of the one module whose function is to remember."""

    def find_spec(self, fullname: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: Any) -> None:
        """Run the module, and have its function look into the cache first."""
        super().exec_module(module)
        define = getattr(module, "define_import_structure", None)
        if define is not None:
            module.define_import_structure = _remembering(define, Path(self.path))


_finder = _Finder()


def quicken() -> None:
    """Have transformers, if it is imported later, look into the cache first."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _remembering(define: Any, defined_in: Path) -> Any:
    """Return a function that does what `define` does, which stands in the file `defined_in`."""
    models = defined_in.parents[1] / "models"

    @functools.wraps(define)
    def define_or_remember(module_path: Any, prefix: str | None = None) -> Structure:
        if Path(module_path) not in (models, models / "__init__.py"):
            structure: Structure = define(module_path, prefix)
            return structure
        before = f"{prefix}." if prefix else ""
        return {
            packages: {before + name: set(names) for name, names in modules.items()}
            for packages, modules in _structure(models, define, defined_in).items()
        }

    return define_or_remember


@functools.cache
def _structure(models: Path, define: Any, defined_in: Path) -> Structure:
    """Return the names that the modules below `models` offer, from the cache if it has them."""
    newest, files = _listing(models, defined_in)
    path_digest = hashlib.sha256(os.fsencode(models)).hexdigest()[:32]
    note = cache_folder() / "transformers" / f"{path_digest}.json"
    kept = json_object(note)
    if kept.get("files") == files:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            return {frozenset(packages): modules for packages, modules in kept["structure"]}
    structure: Structure = define(models)
    if time.time() - newest > _SETTLED_S:
        rows = [[sorted(packages), _sorted(modules)] for packages, modules in structure.items()]
        with contextlib.suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_text(note, json.dumps({"files": files, "structure": rows}), durable=False)
    return structure


def _sorted(modules: dict[str, set[str]]) -> dict[str, list[str]]:
    return {module: sorted(names) for module, names in modules.items()}


def _listing(folder: Path, reader: Path) -> tuple[float, str]:
    """Return the newest time of `reader` and the Python files below `folder`, and a digest of all.

    The digest is of their names, times, sizes and inodes.
    """
    found = [_identity(str(reader), reader.stat())]
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders += [] if entry.name == "__pycache__" else [entry.path]
                elif entry.name.endswith(".py"):
                    found.append(_identity(entry.path, entry.stat()))
    newest_s = max(mtime_ns for _, mtime_ns, *_ in found) / 1e9
    return newest_s, hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def _identity(path: str, stat: os.stat_result) -> tuple[str, int, int, int]:
    return path, stat.st_mtime_ns, stat.st_size, stat.st_ino
