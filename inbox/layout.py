"""The paths of everything that belongs to an inbox."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

PRIORITIES = ("high", "normal", "low")  # what is trained first
STATES = ("queue", "processing", "done", "failed")  # the folders that a job goes through


class Layout:
    """The paths of one inbox; naming them neither reads nor creates anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.quoted = shlex.quote(str(path))  # as a word of a shell command
        self.inbox = path / "inbox"  # where people drop files and folders
        self.queue = path / "queue"  # jobs that wait, a folder each
        self.processing = path / "processing"  # the job that trains
        self.done = path / "done"  # jobs that have ended well, each with its verdict
        self.failed = path / "failed"  # jobs that were set aside, each with its verdict
        self.runs = path / "runs"  # the run folders of the trainings
        self.models = path / "models"  # the trained models, and `current`, the last good one
        self.control = path / "control"  # requests to the daemon: a file each (requests.py)
        self.state = path / "state.json"  # of the daemon: one JSON object, replaced as a whole
        self.lock = path / "inbox.lock"  # held locked by a live daemon; it names the process
        self.log = path / "inbox.log"  # what the daemon has done, a line each
        # The output of the monitor beside the daemon, with its token: for this user alone.
        self.monitor_log = path / "monitor.log"

    def drops(self) -> dict[str, Path]:
        """Return each folder that is watched, by its priority."""
        return {"high": self.inbox / "high", "normal": self.inbox, "low": self.inbox / "low"}

    def create(self) -> None:
        """Create all folders that are missing. Raises OSError."""
        mine = (*(self.path / name for name in STATES), self.runs, self.models, self.control)
        for folder in (*self.drops().values(), *mine):
            folder.mkdir(parents=True, exist_ok=True)


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder, by name; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as folder_entries:
            yield from sorted(folder_entries, key=lambda entry: entry.name)
    except OSError:
        return
