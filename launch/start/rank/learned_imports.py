"""What a script's ranks imported for themselves is remembered, and imported for all the next time.

A script's source does not tell what it will import inside functions, or what its libraries will.
Rank 0 notes it when the script meets the others, and at its end. A note belongs to a script, a
Python and what is installed there; a module of the user's own is never in it. A library that turns
out to be unsafe in a process that is forked is named in the note, and left alone from then on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from launch.start.rank.script_imports import LEFT_OUT
from rundir.atomic import write_text
from rundir.config import ScriptConfig
from rundir.files.reading import json_object
from rundir.paths import cache_folder

_NOTABLE = 20  # modules: fewer cost nothing
_NAMED = 4  # libraries, in a line


@dataclass(slots=True)
class Learned:
    """A note on a script."""

    modules: list[str] = field(default_factory=list)  # in the order of their import
    variables: list[str] = field(default_factory=list)  # that the script sets
    unsafe: dict[str, str] = field(default_factory=dict)  # libraries left alone, and why


def learned_of(script: ScriptConfig) -> Learned:
    """Return what is known of the script; nothing where something else is installed by now."""
    kept = json_object(_note(script))
    if "none" in script.preload or kept.pop("installed", None) != _installed():
        return Learned()
    with contextlib.suppress(TypeError):
        learned = Learned(**kept)
        if all(isinstance(name, str) for name in (*learned.modules, *learned.variables)):
            return learned
    return Learned()


def to_import(script: ScriptConfig, learned: Learned) -> Iterator[str]:
    """Yield the modules to import for all ranks, except what by then is imported or unsafe."""
    refused = {name[1:] for name in script.preload if name.startswith("-")}
    for name in learned.modules:
        if library_of(name) in learned.unsafe or refused & {name, name.partition(".")[0]}:
            continue
        if name not in sys.modules:
            yield name


def library_of(module: str) -> str:
    """Return what a module belongs to: a top-level package, or a part of torch."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "torch" else 1])


def libraries(modules: Iterable[str]) -> str:
    """Return what the modules belong to, as text."""
    names = list(dict.fromkeys(map(library_of, modules)))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def mark_unsafe(script: ScriptConfig, learned: Learned, library: str, why: str) -> None:
    """Leave a library alone in later starts."""
    learned.unsafe[library] = why
    _write(script, learned)


class Watch:
    """Notes what this process imports from now on; create it before the script runs."""

    def __init__(self, script: ScriptConfig) -> None:
        self._script = script
        self._before, self._environ = set(sys.modules), dict(os.environ)
        self._own = tuple(f"{folder}/" for folder in _installed())

    def keep(self) -> str:
        """Write the note; return a line about what the next start gains, "" if that is nothing."""
        learned = learned_of(self._script)
        known, num_before = set(learned.modules), len(learned.modules)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            is_new = name not in self._before and name not in known
            if is_new and file.startswith(self._own) and name.partition(".")[0] not in LEFT_OUT:
                learned.modules.append(name)
        changed = self._environ.items() ^ os.environ.items()
        learned.variables = sorted({name for name, _ in changed}.union(learned.variables))
        new = learned.modules[num_before:]
        if not new:
            return ""
        _write(self._script, learned)
        if len(new) < _NOTABLE:
            return ""
        return f"IMPORT: the next start imports {libraries(new)} once for all ranks"


def _write(script: ScriptConfig, learned: Learned) -> None:
    note = _note(script)
    with contextlib.suppress(OSError):  # a full disk: the next start is as slow as this one
        note.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"installed": _installed(), **dataclasses.asdict(learned)})
        write_text(note, text, durable=False)


def _note(script: ScriptConfig) -> Path:
    of = [script.module or str(Path(script.path).resolve()), sys.prefix, sys.version]
    return cache_folder() / "imports" / f"{hashlib.sha256(repr(of).encode()).hexdigest()[:32]}.json"


@functools.cache  # a script may change its path
def _installed() -> dict[str, str]:
    """Return the folders of installed packages, each with a digest of which these are."""
    installed = {}
    for folder in sys.path:
        packages = sorted(Path(folder or ".").glob("*.dist-info"))
        if packages:
            listed = [(package.name, package.stat().st_mtime_ns) for package in packages]
            installed[folder] = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
    return installed
