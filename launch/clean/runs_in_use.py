"""The runs that are live now, and what they use of others: a checkpoint, a model, prepared data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from machine.processes.runs import all_runs, phase_of
from rundir.owner import is_owned
from rundir.paths import RunDir

IS_LIVE = "it is live, or processes of it are left: ./airlock ps"
_RUN_ID = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{4}")


def run_folders(folder: Path) -> Iterator[RunDir]:
    """Yield the folders that are called as runs are, oldest first; links are left out."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if _RUN_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield RunDir(path)


class LiveRuns:
    """The live runs of this user, in `folders` or with processes here, as they are now.

    `job_folders` hold the jobs of an inbox that go on: their runs can be resumed, or are being
    scored.
    """

    def __init__(self, folders: Collection[Path], job_folders: Collection[Path] = ()) -> None:
        self._folders, self._job_folders = folders, job_folders
        jobs = (folder.iterdir() for folder in job_folders if folder.is_dir())
        self._jobs = [path.name for paths in jobs for path in paths]
        owned = {
            run.path.resolve() for folder in folders for run in run_folders(folder) if is_owned(run)
        }
        with_processes = {processes.run.path.resolve() for processes in all_runs()}
        self._live = owned | with_processes
        self._preparing = [path.name for path in sorted(owned) if _is_being_prepared(RunDir(path))]
        self._texts = {path.name: _texts(RunDir(path)) for path in self._live}

    def again(self) -> LiveRuns:
        """Return those that are live by now."""
        return LiveRuns(self._folders, self._job_folders)

    def why(self, run: RunDir) -> str:
        """Return why `run` is not to be touched, or "": it is live, or a live run uses it."""
        if run.path.resolve() in self._live:
            return IS_LIVE
        of_job = [job for job in self._jobs if f"-{job}." in run.run_id]
        return f"the job {of_job[0]} is not over" if of_job else self.user_of(run.run_id)

    def user_of_cached(self, name: str) -> str:
        """Return what `user_of` does for an entry of the cache.

        A run that is still being prepared has not said what it uses: it may be any.
        """
        if self._preparing:
            return f"the live run {self._preparing[0]} is being prepared, and may use it"
        return self.user_of(name)

    def user_of(self, name: str) -> str:
        """Return which live run names `name` in its command, settings or data; "" if none does."""
        for run_id, text in self._texts.items():
            if name in text and run_id != name:
                return f"the live run {run_id} uses it"
        return ""


def _is_being_prepared(run: RunDir) -> bool:
    return phase_of(run) in ("", "preparing") and not run.prepared.is_file()


def _texts(run: RunDir) -> str:
    texts = []
    for file in (run.command, run.config, run.prepared):
        try:
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # not there yet
            continue
    return "\n".join(texts)
