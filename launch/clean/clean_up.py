"""`airlock clean`: shows what could be removed, and removes it when asked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.clean.caches import old_entries, old_models
from launch.clean.item import Item, Kept, Retention
from launch.clean.old_runs import old_runs
from launch.clean.remove import left_over, remove
from launch.clean.runs_in_use import LiveRuns, run_folders
from machine.typed import console_program
from rundir.errors import ExitCode, UserError
from rundir.paths import cache_folder, runs_folder, shown
from rundir.units import num_text, size_text

_DAY_S = 86400.0


def clean(
    retention: Retention, inbox: str | None, console: Console, *, yes: bool, as_json: bool
) -> ExitCode:
    """Show what could be removed, or remove it. Raises UserError for a folder that is no inbox."""
    places = _CleanedFolders.of(inbox)
    findings = list(places.old_things(retention))
    items = [item for item in findings if isinstance(item, Item)]
    kept = [item for item in findings if isinstance(item, Kept)]
    if not as_json:
        console.out("\n".join(_plan(retention.older_than, places, items, kept)))
    removed, kept_after_all, failed = _remove_all(items) if yes else ([], [], {})
    if as_json:
        answer = _as_json(items, kept + kept_after_all, removed, failed)
        console.out(json.dumps({"is_dry_run": not yes} | answer))
    else:
        lines = [f"  kept after all: {_name(item.path)}: {item.why}" for item in kept_after_all]
        lines += [f"removed: {_total(removed)}"] if yes else _advice(retention, inbox, items)
        console.out("\n".join(lines))
    if failed:
        raise _not_removed(failed)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class _CleanedFolders:
    """Where to look: the runs and the cache, or the runs and the models of an inbox."""

    runs: Path
    cache: Path | None
    models: Path | None

    @classmethod
    def of(cls, inbox: str | None) -> _CleanedFolders:
        """Return the places of an inbox, or of this clone."""
        if inbox is None:
            return cls(runs=runs_folder(), cache=cache_folder(), models=None)
        folder = Path(inbox).expanduser().absolute()
        if not (folder / "inbox").is_dir():
            raise UserError(
                f"{folder} is no inbox: it has no folder `inbox`",
                do=f"{console_program()} clean --inbox FOLDER   # as `airlock inbox FOLDER` has it",
            )
        return cls(runs=folder / "runs", cache=None, models=folder / "models")

    @property
    def all(self) -> list[Path]:
        """All places, as they are shown."""
        return [folder for folder in (self.runs, self.cache, self.models) if folder is not None]

    def old_things(self, retention: Retention) -> Iterable[Item | Kept]:
        """Yield what could be removed, and what is kept although it is old."""
        yield from left_over(self._with_trash())
        jobs = () if self.models is None else ("queue", "processing")
        job_folders = [self.runs.parent / name for name in jobs]
        live = LiveRuns({self.runs, runs_folder()}, job_folders)
        yield from old_runs(self.runs, retention, live)
        if self.cache is not None:
            yield from old_entries(self.cache, retention, live)
        if self.models is not None:
            yield from old_models(self.models, retention, live)

    def _with_trash(self) -> list[Path]:
        folders = [self.runs, *(run.checkpoints for run in run_folders(self.runs))]
        if self.cache is not None:
            folders += [self.cache / "data", self.cache / "models"]
        return folders if self.models is None else [*folders, self.models]


def _remove_all(items: list[Item]) -> tuple[list[Item], list[Kept], dict[Path, OSError]]:
    """Return what was removed, what is kept after all, and what could not be removed."""
    removed, kept = [], []
    failed: dict[Path, OSError] = {}
    for item in items:
        try:
            if why := remove(item):
                kept.append(Kept(kind=item.kind, path=item.path, why=why))
            else:
                removed.append(item)
        except OSError as error:
            failed[item.path] = error
    return removed, kept, failed


def _plan(
    older_than: str, places: _CleanedFolders, items: list[Item], kept: list[Kept]
) -> list[str]:
    where = " and ".join(shown(path) for path in places.all)
    lines = [f"of {where}, older than {older_than}:"]
    lines += [
        f"  {item.kind:<11} {size_text(item.size_bytes):>12}  {item.age_s / _DAY_S:>5.0f} days  "
        f"{_name(item.path)}  ({item.what})"
        for item in sorted(items, key=lambda item: (item.kind, item.path))
    ]
    if kept:
        lines.append("kept, although as old:")
        lines += [
            f"  {kept_item.kind:<11} {_name(kept_item.path)}: {kept_item.why}" for kept_item in kept
        ]
    return lines


def _name(path: Path) -> str:
    """Return the last two parts of a path: a run and its checkpoints, data and an entry."""
    return str(Path(path.parent.name, path.name))


def _advice(retention: Retention, inbox: str | None, items: list[Item]) -> list[str]:
    """Return lines about things that could be removed, with the command that does it."""
    if not items:
        return ["nothing to remove"]
    of_inbox = [] if inbox is None else ["--inbox", inbox]
    options = [*of_inbox, "--older-than", retention.older_than, "--keep", str(retention.keep)]
    return [
        f"could be removed: {_total(items)}; nothing was",
        f"  → {console_program()} clean {shlex.join(options)} --yes",
    ]


def _total(items: list[Item]) -> str:
    size = size_text(sum(item.size_bytes for item in items))
    return f"{num_text(len(items), 'thing')}, {size}"


def _not_removed(failed: Mapping[Path, OSError]) -> UserError:
    path, error = next(iter(failed.items()))
    file = error.filename or path
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return UserError(
        f"{path} could not be removed{more}: {file}: {error.strerror}",
        do=f"ls -ld {shlex.quote(str(file))}   # whose is it? Once mended, type the same again",
        code=ExitCode.PREFLIGHT,
    )


def _as_json(
    items: list[Item],
    kept: list[Kept],
    removed: list[Item],
    failed: Mapping[Path, OSError],
) -> dict[str, Any]:
    return {
        "could_be_removed": [item.as_json for item in items],
        "removed": [entry.as_json for entry in removed],
        "kept": [{"kind": entry.kind, "path": str(entry.path), "why": entry.why} for entry in kept],
        "failed": {str(path): str(error) for path, error in failed.items()},
    }
