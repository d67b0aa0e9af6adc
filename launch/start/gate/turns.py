"""Rank order at the gate. flock admits waiters in no order, so each rank of a run has a turn.

A turn is a lock file, N.lock, that rank N holds from its arrival (N.here) until it has left the
gate. It creates N.in when it is admitted and N.passed when it has left. A turn with N.here, a free
lock and no N.in belonged to a rank that died: those behind it need not wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_DEATH_EVERY = 10  # checks for a mark, which are cheap, for each check of the lock


def lock_file(path: Path) -> FileLock:
    """Return a kernel lock at `path`; it is released when its owner ends for any reason."""
    # A soft lock (a file that merely exists) would go stale if its owner died: fail instead.
    # filelock closes the descriptor in a forked child, which would otherwise keep the lock. The
    # lock is not bound to a thread: a watching thread may let a script's rank out of the gate.
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def try_lock(lock: FileLock) -> bool:
    """Acquire the lock if it is free; return whether that succeeded."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock at `path`."""
    lock = lock_file(path)
    if try_lock(lock):
        lock.release()
        return False
    return True


class Turn:
    """The turn of rank `number` among those sharing `folder`. `tick(whom)` waits for one round."""

    def __init__(self, folder: Path, number: int, tick: Callable[[str], None]) -> None:
        self._folder, self._number, self._tick = folder, number, tick

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Run the block as a rank at the gate; it has passed when the block ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(self._path("lock"))
        lock.acquire()  # others take it briefly to test whether this rank is alive
        self._path("here").touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a full disk: those behind take this for a death
                self._path("passed").touch()
            lock.release()

    def wait(self) -> None:
        """Wait until all ranks with lower numbers are in or have died."""
        for lower in range(self._number - 1, -1, -1):
            if self._wait_for(lower, "in", f"rank {lower} is before this one"):
                return  # it waited for all below it

    def is_in(self) -> None:
        """Record that this rank is in, so that the next may try."""
        self._path("in").touch()

    def wait_until_all_passed(self, num_ranks: int) -> None:
        """Wait until all `num_ranks` ranks of the node have left the gate or have died in it."""
        for number in range(num_ranks):
            self._wait_for(number, "passed", f"rank {number} has not left the gate")

    def _wait_for(self, number: int, what: str, whom: str) -> bool:
        """Wait for that mark of rank `number`; return False if the rank died before making it."""
        for num_looks in itertools.count():
            if self._path(what, number).exists():
                return True
            if num_looks % _DEATH_EVERY == 0 and self._has_died(number):
                # It may have made the mark and left between two looks: without the mark, it died.
                return self._path(what, number).exists()
            self._tick(whom)
        raise AssertionError

    def _has_died(self, number: int) -> bool:
        return self._path("here", number).exists() and not is_held(self._path("lock", number))

    def _path(self, what: str, number: int | None = None) -> Path:
        return self._folder / f"{self._number if number is None else number}.{what}"
