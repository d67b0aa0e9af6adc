"""The gate: one rank of the node at a time imports and loads; the others wait their turn.

Two kernel locks (flock, through filelock) do it, so a holder that dies frees the gate by itself:

* the *node lock*, one file for all runs of this user on the node, is held while inside;
* a *turn* per rank of a run keeps rank order, for flock admits waiters in no order: N.lock is
  locked by its rank from arrival (N.here) until it has passed (N.passed). One that is here, free
  and not passed belonged to a rank that died, and is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from rundir.atomic import write_text
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_POLL_S = 0.02
_REMIND_S = 10.0


def gate_folder() -> Path:
    """The folder of the locks, on a local filesystem: AIRLOCK_GATE_DIR, $XDG_RUNTIME_DIR, /tmp.

    On network filesystems flock may succeed for everyone. In /tmp the folder is named after the
    user and must belong to them alone. Raises UserError when it is a link or someone else's.
    """
    if chosen := os.environ.get("AIRLOCK_GATE_DIR"):
        folder = Path(chosen)
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folder = Path(runtime) / "airlock"
    else:
        folder = Path(tempfile.gettempdir()) / f"airlock-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise _unusable(folder, str(error)) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(folder, "it is a link or a file, not a folder")
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise _unusable(folder, "others own it or may write to it")
    return folder


def _unusable(folder: Path, why: str) -> UserError:
    return UserError(
        f"the gate cannot use {folder}: {why}",
        do="AIRLOCK_GATE_DIR=/a/local/folder/of/yours, or mend that folder",
        code=ExitCode.PREFLIGHT,
    )


def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Gate:
    """The way of `who` (a rank, the zygote) through the gate.

    `turn` is its place among those of the same `run_id`, from 0; with None there are no others.
    `on_wait` gets no text at first, then reminders.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        who: str,
        turn: int | None,
        timeout_s: float,
        on_wait: Callable[[str], None],
    ) -> None:
        self._holder_file = folder / "gate.holder.json"
        self._node_lock = _lock(folder / "gate.lock")
        self._turns = folder / "turns" / run_id
        self._turn = turn
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._waited_since: float | None = None
        self._reminded = time.monotonic()
        self._holder = {
            "run": run_id, "who": who, "pid": os.getpid(), "boot_id": boot_id(),
            "process_start_s": psutil.Process().create_time(),
        }  # fmt: skip

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Wait for the turn and the node lock; both are given up when the block is left.

        Raises TimeoutError, naming the holder, after the time-out.
        """
        with nullcontext() if self._turn is None else self._in_turn(self._turn):
            while not _try(self._node_lock):
                self._tick(_describe(self.holder()))
            try:
                self.phase("admitted")
                yield
            finally:
                self._node_lock.release()

    def phase(self, name: str) -> None:
        """Say what the holder does now, for those who wait; a rank outside says nothing."""
        if not self._node_lock.is_locked:
            return
        content = {**self._holder, "phase": name, "since_t": time.time()}
        with contextlib.suppress(OSError):  # a full disk must not cost a rank that has the lock
            write_text(self._holder_file, json.dumps(content), durable=False)

    def holder(self) -> dict[str, Any] | None:
        """Who last held the node lock, as they wrote it; None when nobody did or it is torn."""
        try:
            content = json.loads(self._holder_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    @contextmanager
    def _in_turn(self, turn: int) -> Iterator[None]:
        """Run the block once all with a lower turn have passed or died."""
        self._turns.mkdir(parents=True, exist_ok=True)
        lock = _lock(self._turns / f"{turn}.lock")
        lock.acquire(timeout=self._timeout_s)
        (self._turns / f"{turn}.here").touch()
        try:
            for lower in range(turn - 1, -1, -1):
                if self._wait_for_turn(lower):
                    break  # it waited for all below it
            yield
        finally:
            with contextlib.suppress(OSError):  # a full disk: those behind take it for a death
                (self._turns / f"{turn}.passed").touch()
            lock.release()

    def _wait_for_turn(self, lower: int) -> bool:
        """Wait until rank `lower` has passed (True) or has died (False)."""
        here, passed = self._turns / f"{lower}.here", self._turns / f"{lower}.passed"
        while not passed.exists():
            if here.exists() and not _is_held(self._turns / f"{lower}.lock"):
                # It may have passed between the two looks: only then is a free turn not a death.
                return passed.exists()
            self._tick(f"rank {lower} is before this one")
        return True

    def _tick(self, whom: str) -> None:
        """One round of waiting."""
        now = time.monotonic()
        if self._waited_since is None:
            self._waited_since = self._reminded = now
            self._on_wait("")
        if now > self._deadline:
            raise TimeoutError(
                f"the gate did not open within {self._timeout_s:.0f} s: {whom}; "
                "launch.gate_timeout_s sets the limit"
            )
        if now - self._reminded >= _REMIND_S:
            self._reminded = now
            self._on_wait(f"{whom}; waited {now - self._waited_since:.0f} s")
        time.sleep(_POLL_S)


def _describe(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "held by an unknown process"
    age_s = max(0.0, time.time() - holder["since_t"])
    return (
        f"held by {holder['who']} of {holder['run']}, pid {holder['pid']}, "
        f"{holder['phase']} for {age_s:.0f} s"
    )


def _lock(path: Path) -> FileLock:
    # A soft lock (a file that merely exists) would go stale with its owner: fail instead.
    return FileLock(path, mode=0o600, fallback_to_soft=False)


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _is_held(path: Path) -> bool:
    lock = _lock(path)
    if _try(lock):
        lock.release()
        return False
    return True
