"""The owner of a run: the process that writes its folder, proven by a lock that dies with it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rundir.files.lock import is_locked, lock
from rundir.files.reading import json_object
from rundir.paths import RunDir

_WRITTEN_S = 10.0  # an owner.json that is empty for longer was left by a process that was killed
_ELSEWHERE_S = 60.0  # a status this young is being written: every five seconds, or sooner
_OPENED = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block
_held: list[int] = []  # open as long as this process lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that owns a run. `pid` counts in its own container, if it is in one."""

    host: str
    pid: int
    started_t: float
    command: str  # what was typed

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started_t))
        return f"process {self.pid} on {self.host}, since {since}: {self.command}"


def take(run: RunDir, command: str) -> None:
    """Make this process the owner of `run`, which it has just created, until it ends.

    Raises OSError if that cannot be written.
    """
    owner = Owner(
        host=socket.gethostname(), pid=os.getpid(), started_t=time.time(), command=command
    )
    file = os.open(run.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks
        lock(file)
    os.write(file, json.dumps(asdict(owner)).encode())
    _held.append(file)


def owner_of(run: RunDir) -> Owner | None:
    """Return the last owner of `run`, alive or not; None if there is no record of it."""
    try:
        return Owner(**json_object(run.owner))
    except TypeError:  # of fields that are missing, or not known
        return None


def is_owned(run: RunDir) -> bool:
    """Return whether the owner of `run` is alive.

    The lock tells, in any container of the machine. Network file systems may not pass locks on:
    there, a status that another machine has just written tells as well.
    """
    with _opened(run) as file:
        if file is None:
            return False
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return False
        if about.st_size == 0:  # its owner is about to take the lock: to try it would be in its way
            return time.time() - about.st_mtime < _WRITTEN_S
        if is_locked(file):
            return True
    owner = owner_of(run)
    return owner is not None and owner.host != socket.gethostname() and _is_being_written(run)


@contextlib.contextmanager
def _opened(run: RunDir) -> Iterator[int | None]:
    try:
        file = os.open(run.owner, _OPENED)
    except OSError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def _is_being_written(run: RunDir) -> bool:
    status = json_object(run.status)
    has_ended = status.get("exit_code", -1) is not None
    return not has_ended and abs(time.time() - status.get("updated_t", 0.0)) < _ELSEWHERE_S
