"""What no run has used for long: entries of the cache, and old models of an inbox.

Of an inbox's models the current one always stays, by its line of descent.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launch.clean.item import Item, Kept, Kind, Retention, freed_bytes
from launch.clean.runs_in_use import LiveRuns
from rundir.seal import is_sealed

# Folder of the cache: what its entries are called, and what they are.
_ENTRIES = {
    "data": (r"[0-9a-f]{24}", "prepared data"),
    "models": (r".+-[0-9a-f]{12}", "a model made for a run"),
}

DESCENT, CURRENT = "descent.jsonl", "current"  # of an inbox's models
# Commands without a run use the cache as well, and runs of other machines.
_LEAST_AGE_S = 600.0


def old_entries(cache: Path, retention: Retention, live: LiveRuns) -> Iterator[Item | Kept]:
    """Yield the entries not used since, by the time of their folders (rundir/seal.py)."""
    for name, (pattern, what) in _ENTRIES.items():
        folder = cache / name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not re.fullmatch(pattern, path.name) or path.is_symlink() or not path.is_dir():
                continue
            stat = path.lstat()
            age_s = time.time() - stat.st_mtime
            if age_s < max(retention.older_than_s, _LEAST_AGE_S):
                continue
            if stat.st_uid != os.getuid() or not is_sealed(path):
                why = "it has no seal of Airlock's: not ours"
            else:
                why = live.user_of_cached(path.name)
            used = _used_since(stat.st_mtime_ns, path.name, live)
            what_goes = f"{what}, made again when a run needs it"
            yield _kept_or_item("cache", path, why, age_s, what_goes, used)


def _used_since(seen_ns: int, name: str, live: LiveRuns) -> Callable[[Path], str]:
    """Return what tells whether a run has begun to use the entry meanwhile."""

    def used(at: Path) -> str:
        if at.lstat().st_mtime_ns != seen_ns:
            return "a run has begun to use it"
        return live.again().user_of_cached(name) if at.name == name else ""

    return used


def old_models(folder: Path, retention: Retention, live: LiveRuns) -> Iterator[Item | Kept]:
    """Yield what can go of `folder`, the models of an inbox, and which old ones are kept."""
    lines = _lines(folder / DESCENT)
    jobs = list(dict.fromkeys(str(line["job"]) for line in lines))
    current = _current(folder, lines)
    last = jobs[-retention.keep :] if retention.keep else []
    times = {str(line["job"]): float(line.get("t") or 0.0) for line in lines}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or path.name == "sets":
            continue
        if path.is_symlink() or not path.is_dir():
            continue
        age_s = time.time() - times.get(path.name, path.lstat().st_mtime)
        if age_s < retention.older_than_s:
            continue
        if path.name in current:
            why = "it is the last good model: `current` points to it"
        elif path.name in last:
            why = f"one of the last {retention.keep} models"
        elif path.name not in jobs:
            why = f"{DESCENT} does not name it: not ours, or being made"
        else:
            why = live.user_of(path.name)
        used = _used(folder, path.name, live)
        yield _kept_or_item("model", path, why, age_s, "a model that another has followed", used)


def _kept_or_item(
    kind: Kind, path: Path, why: str, age_s: float, what: str, used: Callable[[Path], str]
) -> Item | Kept:
    """Return what is kept for the reason `why`, or, if that is empty, what can go."""
    if why:
        return Kept(kind=kind, path=path, why=why)
    size_bytes = freed_bytes(path)
    return Item(kind=kind, path=path, size_bytes=size_bytes, age_s=age_s, what=what, used=used)


def _used(folder: Path, name: str, live: LiveRuns) -> Callable[[Path], str]:
    def used(at: Path) -> str:
        if name in _current(folder, _lines(folder / DESCENT)):
            return "it is the current model now"
        return live.again().user_of(name) if at.name == name else ""

    return used


def _current(folder: Path, lines: list[dict[str, Any]]) -> set[str]:
    """Return the model that `current` points to, and the last that was made current."""
    last = [str(line["job"]) for line in lines if line.get("is_current")][-1:]
    link = folder / CURRENT
    return {*last, *([link.readlink().name] if link.is_symlink() else [])}


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of descent (inbox/models/descent.py); none if there is no such file."""
    entries = []
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        entries += [entry] if isinstance(entry, dict) and "job" in entry else []
    return entries
