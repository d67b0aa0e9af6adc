"""Where the index of a run lies: in the cache, in a temporary folder, or in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from urllib.parse import quote

from monitor.metrics.store import VERSION, remove
from rundir.paths import RunDir, cache_folder
from rundir.scratch import new_scratch

_MOST_BYTES = 8 << 30  # of all indexes in the cache
_SUFFIX = f".v{VERSION}.sqlite"


class Places:
    """The folders that an index may lie in, the better first."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "monitor" / "metrics"
        self._scratch: Path | None = None

    def __len__(self) -> int:
        return 3

    def path(self, run: RunDir, place: int) -> Path | None:
        """Return the file in that place; None is in memory. Raises OSError."""
        if place == 0:
            return self.folder / _name(run)
        if place == 1:
            if self._scratch is None:
                self._scratch = new_scratch("monitor")
            return self._scratch / _name(run)
        return None

    def tidy(self, runs_folder: Path) -> None:
        """Remove indexes of runs that are gone, and the oldest if there are too many."""
        folders = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".sqlite"):
                    continue
                path = Path(entry.path)
                if not entry.name.endswith(_SUFFIX) or _is_orphan(path, runs_folder):
                    remove(path)
                    continue
                with contextlib.suppress(OSError):
                    there = entry.stat()
                    folders.append((there.st_mtime, there.st_size, path))
        left = sum(size for _, size, _ in folders)
        for _, size, path in sorted(folders)[:-1]:
            if left <= _MOST_BYTES:
                break
            remove(path)
            left -= size

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _name(run: RunDir) -> str:
    """Return the name of a run's index: that of the run, and a hash of the whole path."""
    where = hashlib.sha256(os.fsencode(run.path.parent)).hexdigest()[:12]
    return f"{quote(run.run_id.encode(errors='surrogateescape'), safe='')[:150]}-{where}{_SUFFIX}"


def _is_orphan(path: Path, runs_folder: Path) -> bool:
    """Return whether the index is of a run of that folder, and the run is gone."""
    run_id = path.name.removesuffix(_SUFFIX)[:-13]
    run = RunDir(runs_folder / run_id)
    return "%" not in run_id and path.name == _name(run) and not run.path.exists()
