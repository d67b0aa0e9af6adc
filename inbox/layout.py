"""The paths of everything that belongs to an inbox."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRIORITIES = ("high", "normal", "low")  # what is trained first
STATES = ("queue", "processing", "done", "failed")  # the folders that a job goes through


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one inbox; naming them neither reads nor creates anything."""

    path: Path

    @property
    def quoted(self) -> str:
        """The folder as a word of a shell command."""
        return shlex.quote(str(self.path))

    @property
    def inbox(self) -> Path:
        """Where people drop files and folders."""
        return self.path / "inbox"

    @property
    def queue(self) -> Path:
        """Jobs that wait, a folder each."""
        return self.path / "queue"

    @property
    def processing(self) -> Path:
        """The job that trains."""
        return self.path / "processing"

    @property
    def done(self) -> Path:
        """Jobs that have ended well, each with its verdict."""
        return self.path / "done"

    @property
    def failed(self) -> Path:
        """Jobs that were set aside, each with its verdict."""
        return self.path / "failed"

    @property
    def runs(self) -> Path:
        """The run folders of the trainings."""
        return self.path / "runs"

    @property
    def models(self) -> Path:
        """The trained models, and `current`, the last good one."""
        return self.path / "models"

    @property
    def control(self) -> Path:
        """Requests to the daemon: a file each (inbox/requests.py)."""
        return self.path / "control"

    @property
    def state(self) -> Path:
        """The state of the daemon, one JSON object, replaced as a whole."""
        return self.path / "state.json"

    @property
    def lock(self) -> Path:
        """The file that a live daemon holds locked; it names the process."""
        return self.path / "inbox.lock"

    @property
    def log(self) -> Path:
        """What the daemon has done, a line each."""
        return self.path / "inbox.log"

    @property
    def monitor_log(self) -> Path:
        """The output of the monitor beside the daemon, with its token: for this user alone."""
        return self.path / "monitor.log"

    def drops(self) -> list[tuple[str, Path]]:
        """Return each folder that is watched, with its priority."""
        return [
            ("high", self.inbox / "high"),
            ("normal", self.inbox),
            ("low", self.inbox / "low"),
        ]

    def create(self) -> None:
        """Create all folders that are missing. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        mine = (*(self.path / name for name in STATES), self.runs, self.models, self.control)
        for folder in (*(drop for _, drop in self.drops()), *mine):
            folder.mkdir(parents=True, exist_ok=True)


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder, by name; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as folder_entries:
            yield from sorted(folder_entries, key=lambda entry: entry.name)
    except OSError:
        return
