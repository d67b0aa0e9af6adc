"""The folder of all runs: which there are, newest first, and their rows, each read once.

The names are read again only when the folder has changed, a row only when its status.json has, or
when its run is not known to have ended. So ten thousand runs cost what the page shown costs.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import is_text
from monitor.runs.run_rows import RunRow, row_of
from rundir.paths import RunDir

_STAMPED = re.compile(r"\d{8}-\d{6}-.*")
_SETTLED_S = 2.0  # a folder changed later than this before it was listed may change unseen
_MOST_ROWS = 20_000  # that are remembered
_LIVE_S = 0.5  # for so long a row of a run that goes on is good
_DEAD_S = 120.0  # one without an owner that has written nothing for so long stays dead


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in the folder, newest first, and when they are good no longer."""

    mtime_ns: int
    is_settled: bool
    ids: tuple[str, ...]
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A row that was read."""

    row: RunRow
    stamp: tuple[int, int, int]
    read_mono: float

    def is_good(self, now_mono: float) -> bool:
        """Return whether nothing but a new status.json can change the row."""
        if self.row.exit_code is not None or now_mono - self.read_mono < _LIVE_S:
            return True
        return self.row.state == "crashed" and time.time() - self.stamp[0] / 1e9 > _DEAD_S


class Runs:
    """The runs below one folder. May be used by several threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = _Names(-1, False, (), frozenset())
        self._rows: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def page(
        self, *, limit: int = 50, offset: int = 0, search: str = "", state: str = ""
    ) -> tuple[list[RunRow], int]:
        """Return rows, newest first, and how many there are: those with `search` in their id.

        With `state`, all runs have to be looked at: the first time that takes a while.
        """
        wanted = search.casefold()
        ids = [run_id for run_id in self.ids() if wanted in run_id.casefold()]
        if not state:
            rows = (
                self.row(RunDir(self.folder / run_id)) for run_id in ids[offset : offset + limit]
            )
            return [row for row in rows if row is not None], len(ids)
        in_state = [
            row
            for run_id in ids
            if (row := self.row(RunDir(self.folder / run_id))) is not None and row.state == state
        ]
        return in_state[offset : offset + limit], len(in_state)

    def find(self, name: str) -> RunDir:
        """Return the run with that id, or that `latest` points at.

        Raises NotFoundError. A name is only ever compared with those in the folder, so that it
        leads nowhere else.
        """
        if name == "latest":
            name = self.latest_id()
        if name not in self._listed().known or not (self.folder / name).is_dir():
            raise NotFoundError(
                f"no run {name[:200]!r} in {self.folder}", "api/runs   # those that there are"
            )
        return RunDir(self.folder / name)

    def latest_id(self) -> str:
        """Return the id that `latest` points at, or else the newest. Raises NotFoundError."""
        listed = self._listed()
        try:
            target = (self.folder / "latest").readlink().name
        except OSError:
            target = ""
        if target in listed.known:
            return target
        if not listed.ids:
            raise NotFoundError(
                f"no runs in {self.folder} yet", "./start.sh tiny   # makes one, without a GPU"
            )
        return listed.ids[0]

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all runs, newest first."""
        return self._listed().ids

    def row(self, run: RunDir) -> RunRow | None:
        """Return the row of a run, as it is now; None if the run has gone meanwhile."""
        stamp = _stamp(run)
        now = time.monotonic()
        with self._lock:
            kept = self._rows.get(run.run_id)
        if kept is not None and kept.stamp == stamp and kept.is_good(now):
            return kept.row
        if stamp[0] == 0 and not run.path.is_dir():
            with self._lock:
                self._rows.pop(run.run_id, None)
            return None
        row = row_of(run)
        with self._lock:
            self._rows[run.run_id] = _Kept(row, stamp, now)
            self._rows.move_to_end(run.run_id)
            if len(self._rows) > _MOST_ROWS:
                self._rows.popitem(last=False)
        return row

    def _listed(self) -> _Names:
        """Return the names, read again if the folder has changed."""
        try:
            mtime_ns = self.folder.stat().st_mtime_ns
        except OSError:
            return _Names(-1, False, (), frozenset())
        names = self._names
        if names.is_settled and names.mtime_ns == mtime_ns:
            return names
        # Two changes may have the same time: one that is this young does not tell of the next.
        is_settled = time.time() - mtime_ns / 1e9 > _SETTLED_S
        ids = tuple(_ids(self.folder))
        self._names = _Names(mtime_ns, is_settled, ids, frozenset(ids))
        return self._names


def _ids(folder: Path) -> list[str]:
    """Return the names of the run folders in `folder`, newest first.

    Links are left out: they lead elsewhere, or to a run that is listed already.
    """
    ids = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False) and (stamp := _when(entry)):
                    ids.append((stamp, entry.name))
    except OSError:
        return []
    return [name for _, name in sorted(ids, reverse=True)]


def _when(entry: os.DirEntry[str]) -> str:
    """Return the time of a run, as in its name; of a renamed one, that of its configuration."""
    if _STAMPED.fullmatch(entry.name):
        return entry.name[:15]
    try:
        time_s = (Path(entry.path) / "config.toml").lstat().st_mtime
    except OSError:
        return ""  # no run
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s))


def _stamp(run: RunDir) -> tuple[int, int, int]:
    """Return what changes whenever status.json is replaced; zeros without one."""
    try:
        stat = run.status.lstat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
