"""Answers about the metrics of runs, from indexes that are brought up to date by being asked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.metrics.indexer import Progress, advance, progress_of
from monitor.metrics.metrics_query import MetricsQuestion, answer
from monitor.metrics.places import Places, remove
from monitor.metrics.store import BrokenError, BusyError, IndexState, Store
from rundir.paths import ROOT, RunDir

_LOG = logging.getLogger(__name__)
_PIECE_BYTES = 256 << 10  # indexed at once while someone waits for the answer
_BEHIND_BYTES = 1 << 20  # more is left to the background
_PATIENCE_S = 0.3  # spent on indexing before an answer, at most
_RETRY_S = 60.0  # a place that took no index is tried again after that
_TIDY_S = 3600.0
_INTEREST_S = 5.0  # after which a run that nobody has asked for makes room for another
_RESTART_S = 30.0  # after a process that could not be started, or could do nothing


@dataclass(slots=True)
class _Place:
    """Where the index of a run is kept."""

    number: int = 0
    since_mono: float = 0.0
    problem: str | None = None  # why it is not in the cache


class Index:
    """The metrics of all runs. May be used by several threads at once."""

    def __init__(self, folder: Path | None = None, *, in_background: bool = True) -> None:
        """`folder` is for the indexes; by default below the cache folder."""
        self._places = Places(folder)
        self._background = Background() if in_background else None
        self._place_of: dict[Path, _Place] = {}  # of runs that are not in the cache
        self._lock = threading.Lock()
        self._tidied_mono = -_TIDY_S

    def metrics(self, run: RunDir, question: MetricsQuestion) -> dict[str, Any]:
        """Return the answer to `GET /api/runs/R/metrics` (docs/serve.md)."""
        self._tidy(run)
        place = self._place_of.get(run.path, _Place())
        if place.number and time.monotonic() - place.since_mono > _RETRY_S:
            place = _Place()
        is_new = False
        while True:
            try:
                answered = self._answered(self._places.store(run, place.number), run, question)
            except (BrokenError, OSError) as error:
                # A damaged index is made anew, once; where none can be kept, the next place is.
                _LOG.warning("the index of %s at place %d: %s", run.run_id, place.number, error)
                if isinstance(error, BrokenError) and not is_new:
                    remove(self._places.store(run, place.number).folder)
                elif place.number + 1 < len(self._places):
                    problem = place.problem or f"{error}: {self._places.folder}"
                    place = _Place(place.number + 1, time.monotonic(), problem)
                else:
                    raise
                is_new = not is_new and isinstance(error, BrokenError)
            else:
                break
        if place.problem is None:
            self._place_of.pop(run.path, None)
        else:
            self._place_of[run.path] = place
            answered["indexed"]["problem"] = place.problem
        return answered

    def _answered(self, store: Store, run: RunDir, question: MetricsQuestion) -> dict[str, Any]:
        progress = self._up_to_date(store, run)
        while True:
            state = store.state() or IndexState()
            try:
                return answer(store, state, question, progress)
            except BrokenError:
                now = store.state()
                if now is None or now.identity == state.identity:
                    raise  # else another process has just taken rows away

    def _up_to_date(self, store: Store, run: RunDir) -> Progress:
        """Index what is new, or have it done in the background if that is much."""
        begin = time.monotonic()
        while True:
            try:
                progress = advance(store, run, _PIECE_BYTES)
            except BusyError:  # another process is at it: what there is, is the answer
                return progress_of(store, run)
            except OSError:
                if store.most_bytes is None:
                    raise
                return progress_of(store, run)  # as much as may be in memory
            behind_bytes = progress.of_bytes - progress.num_bytes
            is_given_away = behind_bytes > _BEHIND_BYTES and self._is_given_away(store, run)
            if progress.done or is_given_away or time.monotonic() - begin > _PATIENCE_S:
                return progress

    def _is_given_away(self, store: Store, run: RunDir) -> bool:
        """Have the rest indexed by the process for that; return whether there is one."""
        if store.most_bytes is not None or self._background is None:
            return False
        return self._background.index(run, store.folder)

    def _tidy(self, run: RunDir) -> None:
        """Remove what is of no use any more, at times."""
        now = time.monotonic()
        with self._lock:
            if now - self._tidied_mono < _TIDY_S:
                return
            self._tidied_mono = now
        self._places.tidy(run.path.parent)

    def close(self) -> None:
        """End the background process; what is in the cache stays."""
        if self._background is not None:
            self._background.close()
        self._places.close()


class Background:
    """Has at most one process, for one run; what it has indexed stays when it is ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunDir | None = None
        self._asked_mono = 0.0
        self._failed_mono = -_RESTART_S
        self._lock = threading.Lock()

    def index(self, run: RunDir, index: Path) -> bool:
        """Have the run indexed, now or after another; return whether that is being done."""
        with self._lock:
            now = time.monotonic()
            if self._process is not None and self._process.poll() is None:
                if run == self._run:
                    self._asked_mono = now
                if now - self._asked_mono < _INTEREST_S:
                    return True
            elif self._process is not None and self._process.returncode:
                self._failed_mono = now
            self._close()
            if now - self._failed_mono < _RESTART_S:
                return False
            self._start(run, index)
            self._asked_mono = now
            return self._process is not None

    def _start(self, run: RunDir, index: Path) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "monitor.metrics", str(run.path), str(index)],
                stdin=subprocess.PIPE,  # which ends with the server
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        except OSError:  # as many processes as there may be
            self._failed_mono = time.monotonic()
        self._run = run

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()
