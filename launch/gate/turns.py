"""Rank order at the gate. flock admits waiters in no order, so each rank of a run has a turn.

A turn is a lock file, N.lock, that rank N holds from when it is here (N.here) until it has left the
gate. It marks when it got in (N.in) and when it has left (N.passed). A turn that is here, free and
not in belonged to a rank that died: those behind it need not wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_DEATH_EVERY = 10  # looks for a mark, which cost little, to one at a lock


def lock_file(path: Path) -> FileLock:
    """A lock of the kernel's at `path`; it is freed when its owner ends, in whatever way."""
    # A soft lock (a file that merely exists) would go stale with its owner: fail instead. filelock
    # closes the descriptor in a forked child, which would otherwise keep the lock. And not bound to
    # a thread: a script's rank may be let out by one that watches over it.
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def try_lock(lock: FileLock) -> bool:
    """Take the lock if it is free."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether a process holds the lock at `path`."""
    lock = lock_file(path)
    if try_lock(lock):
        lock.release()
        return False
    return True


class Turn:
    """The turn of rank `number` among those that share `folder`. `tick(whom)` is one wait."""

    def __init__(self, folder: Path, number: int, tick: Callable[[str], None]) -> None:
        self._folder, self._number, self._tick = folder, number, tick

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Run the block as one that is at the gate; it has passed when the block is left."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(self._path("lock"))
        lock.acquire()  # for a moment others try it, to see whether this rank lives
        self._path("here").touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a full disk: those behind take it for a death
                self._path("passed").touch()
            lock.release()

    def wait(self) -> None:
        """Wait until all with a lower number are in, or have died."""
        for lower in range(self._number - 1, -1, -1):
            if self._wait_for(lower, "in", f"rank {lower} is before this one"):
                return  # it waited for all below it

    def is_in(self) -> None:
        """The next may try."""
        self._path("in").touch()

    def wait_until_all_passed(self, num_ranks: int) -> None:
        """Wait until all `num_ranks` ranks of the node have left the gate, or have died in it."""
        for number in range(num_ranks):
            self._wait_for(number, "passed", f"rank {number} has not left the gate")

    def _wait_for(self, number: int, what: str, whom: str) -> bool:
        """Wait until rank `number` has made that mark (True) or has died before it (False)."""
        for num_looks in itertools.count():
            if self._path(what, number).exists():
                return True
            if num_looks % _DEATH_EVERY == 0 and self._has_died(number):
                # It may have made it and left between two looks: only without that it died.
                return self._path(what, number).exists()
            self._tick(whom)
        raise AssertionError

    def _has_died(self, number: int) -> bool:
        return self._path("here", number).exists() and not is_held(self._path("lock", number))

    def _path(self, what: str, number: int | None = None) -> Path:
        return self._folder / f"{self._number if number is None else number}.{what}"
