"""Where the index of a run lies: in the cache, in a temporary folder, or in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from monitor.metrics.store import VERSION, Store
from rundir.atomic import new_scratch
from rundir.paths import RunDir, cache_folder

_MOST_BYTES = 8 << 30  # of all indexes in the cache
_MOST_BYTES_IN_MEMORY = 64 << 20  # of all indexes there: ranks need it, too
_SUFFIX = f".v{VERSION}"


class Places:
    """The folders that an index may lie in, the better first."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "monitor" / "metrics"
        self._scratch: dict[Path, Path] = {}

    def __len__(self) -> int:
        return 3

    def store(self, run: RunDir, place: int) -> Store:
        """Return the run's index in that place. Raises OSError."""
        if place == 0:
            return Store(self.folder / _name(run))
        if place == 1:
            return Store(self._scratch_in(Path(tempfile.gettempdir())) / _name(run))
        in_memory = self._scratch_in(Path("/dev/shm"))  # noqa: S108 - a folder of our own in it
        return Store(in_memory / _name(run), _MOST_BYTES_IN_MEMORY)

    def _scratch_in(self, parent: Path) -> Path:
        """Return this process's folder there; those of killed processes are removed."""
        if parent not in self._scratch:
            self._scratch[parent] = new_scratch("monitor", parent)
        return self._scratch[parent]

    def tidy(self, runs_folder: Path) -> None:
        """Remove indexes of runs that are gone, and the oldest if there are too many."""
        indexes = []
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            if not path.name.endswith(_SUFFIX) or _is_orphan(path, runs_folder):
                remove(path)
                continue
            with contextlib.suppress(OSError):
                num_bytes = sum(file.stat().st_size for file in path.iterdir())
                indexes.append((path.stat().st_mtime, num_bytes, path))
        left_bytes = sum(num_bytes for _, num_bytes, _ in indexes)
        for _, num_bytes, path in sorted(indexes)[:-1]:
            if left_bytes <= _MOST_BYTES:
                break
            remove(path)
            left_bytes -= num_bytes

    def close(self) -> None:
        """Remove the temporary folders."""
        for folder in self._scratch.values():
            shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove an index, or the one file that it was in an earlier version."""
    with contextlib.suppress(OSError):
        path.unlink() if path.is_file() else shutil.rmtree(path)


def _name(run: RunDir) -> str:
    """Return the name of a run's index: that of the run, and a hash of the whole path."""
    where = hashlib.sha256(os.fsencode(run.path.parent)).hexdigest()[:12]
    return f"{quote(run.run_id.encode(errors='surrogateescape'), safe='')[:150]}-{where}{_SUFFIX}"


def _is_orphan(path: Path, runs_folder: Path) -> bool:
    """Return whether the index is of a run of that folder, and the run is gone."""
    run_id = path.name.removesuffix(_SUFFIX)[:-13]
    run = RunDir(runs_folder / run_id)
    return "%" not in run_id and path.name == _name(run) and not run.path.exists()
