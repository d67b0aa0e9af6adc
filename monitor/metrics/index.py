"""Answers about the metrics of runs, from indexes that are brought up to date by being asked."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from monitor.http.api_errors import ApiError
from monitor.metrics.background import Background
from monitor.metrics.places import Places
from monitor.metrics.query import Question, answer
from monitor.metrics.reader import Progress, advance, progress_of
from monitor.metrics.store import BrokenError, BusyError, Store, UnusableError, remove
from rundir.paths import RunDir

_LOG = logging.getLogger(__name__)
_PIECE_BYTES = 256 << 10  # indexed at once while someone waits for the answer
_BEHIND_BYTES = 1 << 20  # more is left to the background
_PATIENCE_S = 0.3  # spent on indexing before an answer, at most
_MOST_OPEN = 8
_RETRY_S = 60.0  # a place that took no index is tried again after that
_TIDY_S = 3600.0

T = TypeVar("T")


@dataclass(slots=True)
class _Open:
    """The index of one run: where it is, and who uses it now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    store: Store | None = None
    place: int = 0
    fell_mono: float = 0.0
    problem: str | None = None  # why it is not in the cache

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None


class Index:
    """The metrics of all runs. May be used by several threads at once."""

    def __init__(self, folder: Path | None = None, *, in_background: bool = True) -> None:
        """`folder` is for the indexes; by default below the cache folder."""
        self._places = Places(folder)
        self._background = Background() if in_background else None
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = threading.Lock()
        self._tidied_mono: float | None = None

    def metrics(self, run: RunDir, question: Question) -> dict[str, Any]:
        """Return the answer to `GET /api/runs/R/metrics` (docs/serve.md)."""
        self._tidy(run)
        with self._lock:
            opened = self._open.setdefault(run.path, _Open())
            self._open.move_to_end(run.path)
        with opened.lock:
            answer = self._asked(run, opened, lambda store: self._answered(store, run, question))
            if opened.problem is not None:
                answer["indexed"]["problem"] = opened.problem
        self._close_some()
        return answer

    def _asked(self, run: RunDir, opened: _Open, ask: Callable[[Store], T]) -> T:
        """Ask the run's index, wherever one can be kept; one that is broken is made anew."""
        if opened.place and time.monotonic() - opened.fell_mono > _RETRY_S:
            opened.close()
            opened.place, opened.problem = 0, None
        last = len(self._places) - 1
        for is_again in (False, True) * len(self._places):
            try:
                return ask(self._opened(run, opened))
            except ApiError:
                raise
            except Exception as error:
                # A damaged index may lead to anything; it is a cache, so it is no reason to fail.
                in_memory = opened.place == last
                if in_memory and is_again:
                    raise
                self._give_up(run, opened, error, is_again=is_again)
        raise AssertionError

    def _give_up(self, run: RunDir, opened: _Open, error: Exception, *, is_again: bool) -> None:
        """Remove an index that is broken; go on elsewhere where none can be kept."""
        opened.close()
        if isinstance(error, UnusableError | BusyError | OSError) or is_again:
            _LOG.warning("no index of %s at place %d: %s", run.run_id, opened.place, error)
            opened.problem = opened.problem or f"{error}: {self._places.folder}"
            opened.place = min(opened.place + 1, len(self._places) - 1)
            opened.fell_mono = time.monotonic()
            return
        _LOG.warning(
            "the index of %s is made anew: %s",
            run.run_id,
            error,
            exc_info=not isinstance(error, BrokenError),
        )
        path = self._places.path(run, opened.place)
        if path is not None:
            remove(path)

    def _opened(self, run: RunDir, opened: _Open) -> Store:
        if opened.store is not None and not opened.store.is_current():
            opened.close()
        if opened.store is None:
            opened.store = Store(self._places.path(run, opened.place))
        return opened.store

    def _answered(self, store: Store, run: RunDir, question: Question) -> dict[str, Any]:
        progress = self._up_to_date(store, run)
        return answer(store, question, progress)

    def _up_to_date(self, store: Store, run: RunDir) -> Progress:
        """Index what is new, or have it done in the background if that is much."""
        begin = time.monotonic()
        while True:
            try:
                progress = advance(store, run, _PIECE_BYTES)
            except BusyError:  # another process is at it: what there is, is the answer
                return progress_of(store, run)
            except UnusableError:
                if store.path is None:  # as much as may be in memory
                    return progress_of(store, run)
                raise
            behind_bytes = progress.of_bytes - progress.num_bytes
            is_given_away = behind_bytes > _BEHIND_BYTES and self._is_given_away(store, run)
            if progress.done or is_given_away or time.monotonic() - begin > _PATIENCE_S:
                return progress

    def _is_given_away(self, store: Store, run: RunDir) -> bool:
        """Have the rest indexed by the process for that; return whether there is one."""
        if store.path is None or self._background is None:
            return False
        return self._background.index(run, store.path)

    def _tidy(self, run: RunDir) -> None:
        """Remove what is of no use any more, at times."""
        now = time.monotonic()
        with self._lock:
            if self._tidied_mono is not None and now - self._tidied_mono < _TIDY_S:
                return
            self._tidied_mono = now
        self._places.tidy(run.path.parent)

    def _close_some(self) -> None:
        """Close the indexes that were not asked for lately."""
        with self._lock:
            for path in list(self._open)[: max(0, len(self._open) - _MOST_OPEN)]:
                opened = self._open[path]
                if opened.lock.acquire(blocking=False):
                    opened.close()
                    del self._open[path]
                    opened.lock.release()

    def close(self) -> None:
        """End the background process, and close all; what is in the cache stays."""
        if self._background is not None:
            self._background.close()
        with self._lock:
            for opened in self._open.values():
                with opened.lock:
                    opened.close()
            self._open.clear()
        self._places.close()
