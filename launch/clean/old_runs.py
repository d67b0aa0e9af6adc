"""Old runs, and the checkpoints of runs that are done and have exported their model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launch.clean.item import TRASH, Item, Kept, Retention, freed_bytes
from launch.clean.runs_in_use import IS_LIVE, LiveRuns, run_folders
from machine.processes.runs import status_of
from rundir.checkpoints import best_checkpoint, complete_checkpoints
from rundir.errors import ExitCode
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordedRun:
    """A run with Airlock's records."""

    run: RunDir
    profile: str
    phase: str
    is_done: bool
    ended_t: float  # when it last wrote anything

    @property
    def has_exported(self) -> bool:
        """True if its model, or its adapters, are there as a whole."""
        return self.is_done and (self.run.model.is_dir() or self.run.adapter.is_dir())


def old_runs(folder: Path, retention: Retention, live: LiveRuns) -> Iterator[Item | Kept]:
    """Yield what can go of the runs in `folder`, and which old ones are kept, and why."""
    runs = []
    for run in run_folders(folder):
        recorded = _recorded(run)
        if recorded is None:
            yield Kept(kind="run", path=run.path, why="it has no record of Airlock's: not ours")
        else:
            runs.append(recorded)
    kept = _kept_by_place(folder, runs, retention)
    last_models = _last_models(runs)
    for old in runs:
        age_s = time.time() - old.ended_t
        if age_s < retention.older_than_s:
            continue
        why = live.why(old.run) or kept.get(old.run.path, "")
        if not why:
            yield Item(
                kind="run",
                path=old.run.path,
                size_bytes=freed_bytes(old.run.path),
                age_s=age_s,
                what=f"{old.profile}, {old.phase or 'never began'}",
                used=_used(old.run, live),
            )
            continue
        checkpoints = [] if live.why(old.run) else _superfluous(old, last_models)
        if checkpoints:
            yield Item(
                kind="checkpoints",
                path=old.run.checkpoints,
                paths=tuple(checkpoints),
                size_bytes=sum(map(freed_bytes, checkpoints)),
                age_s=age_s,
                what=f"{len(checkpoints)} of a run that is done; its model stays",
                used=_used(old.run, live),
            )
        yield Kept(kind="run", path=old.run.path, why=why)


def _used(run: RunDir, live: LiveRuns) -> Callable[[Path], str]:
    def used(at: Path) -> str:
        if at.name.startswith(TRASH):  # it was looked at a moment ago
            return IS_LIVE if is_owned(RunDir(at)) else ""
        return live.again().why(run)

    return used


def _recorded(run: RunDir) -> _RecordedRun | None:
    """Return the run with what its records say; None without any, or if it is another user's."""
    owner, status = owner_of(run), status_of(run)
    is_ours = owner is not None or status.get("run_id") == run.run_id
    try:
        if not is_ours or run.path.lstat().st_uid != os.getuid():
            return None
        times = [float(status.get("updated_t") or 0.0), _written_t(run)]
    except FileNotFoundError:  # another clean was first
        return None
    return _RecordedRun(
        run=run,
        profile=str(status.get("profile") or ""),
        phase=str(status.get("phase") or ""),
        is_done=status.get("exit_code") == ExitCode.DONE,
        ended_t=max(times + ([] if owner is None else [owner.started_t])),
    )


def _written_t(run: RunDir) -> float:
    try:
        return max(run.status.stat().st_mtime, run.owner.stat().st_mtime)
    except OSError:
        return run.path.lstat().st_mtime


def _kept_by_place(folder: Path, runs: list[_RecordedRun], retention: Retention) -> dict[Path, str]:
    """Return the runs that are kept whatever their age, with the reason."""
    reasons: dict[Path, str] = {}
    which = "the last run" if retention.keep == 1 else f"one of the last {retention.keep}"
    by_profile: dict[str, list[_RecordedRun]] = {}
    for run in runs:
        by_profile.setdefault(run.profile, []).append(run)
    for profile, of_profile in by_profile.items():
        for run in of_profile[-retention.keep :] if retention.keep else []:
            reasons[run.run.path] = f"{which} of {profile or 'its profile'}"
    for path in _last_models(runs):
        reasons.setdefault(path, "it has the last good model of its profile")
    resumable = (run for run in runs if complete_checkpoints(run.run.checkpoints))
    for path in _last_of_each_profile(resumable):
        reasons.setdefault(path, "it has the last checkpoints of its profile, to go on from")
    latest = folder / "latest"
    if latest.is_symlink():
        reasons.setdefault(folder / latest.readlink(), "`latest` points to it")
    return reasons


def _last_models(runs: list[_RecordedRun]) -> set[Path]:
    """Return the last run of each profile that has exported a model."""
    return _last_of_each_profile(run for run in runs if run.has_exported)


def _last_of_each_profile(runs: Iterable[_RecordedRun]) -> set[Path]:
    return set({run.profile: run.run.path for run in runs}.values())


def _superfluous(old: _RecordedRun, last_models: set[Path]) -> list[Path]:
    """Return the checkpoints that a run which stays can do without.

    The best of the last good run of a profile stays, or its last if none was evaluated.
    """
    folder = old.run.checkpoints
    if not old.has_exported or folder.is_symlink():
        return []
    checkpoints = [path for path in complete_checkpoints(folder) if not path.is_symlink()]
    if old.run.path in last_models and checkpoints:
        best = best_checkpoint(folder) or checkpoints[-1]
        checkpoints = [path for path in checkpoints if path != best]
    return checkpoints
