"""The gate's folder: local, private to this user, and with working locks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from machine.mounts import filesystem_of, is_network
from rundir.errors import ExitCode, UserError

_PROBE_TIMEOUT_S = 20.0

# Run in another process: exits with 0 if it gets the lock as well.
_PROBE = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(1)
"""


def gate_folder() -> Path:
    """Return the folder of the locks, created if missing: AIRLOCK_GATE_DIR, or one in /tmp.

    The one in /tmp is named after the user. Raises UserError if the folder is a link or a file, if
    another user owns it or may write to it, or if it cannot be created.
    """
    folder = _location()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise _unusable(folder, str(error)) from error
    if not stat.S_ISDIR(about.st_mode):
        raise _unusable(folder, "it is a link or a file, not a folder")
    if about.st_uid != os.getuid():
        raise _unusable(folder, f"it belongs to the user {about.st_uid}, not to {os.getuid()}")
    if about.st_mode & 0o022:
        raise _unusable(folder, f"others may write to it (mode {stat.S_IMODE(about.st_mode):o})")
    return folder


def _location() -> Path:
    """Return a path that is the same in all sessions of a user, whatever a login or a job sets."""
    return Path(os.environ.get("AIRLOCK_GATE_DIR") or f"/tmp/airlock-{os.getuid()}")  # noqa: S108 - its owner and mode are checked


def check_gate() -> Path:
    """Return the gate's folder, after a test that a lock held in it excludes another process.

    Raises UserError if it does not, or if the folder is not on a local filesystem.
    """
    folder = gate_folder()
    kind = filesystem_of(folder)
    if is_network(kind):  # depending on mount options and version, flock may exclude nobody there
        raise _unusable(folder, f"it is on a network filesystem ({kind}), where locks may be void")
    probe = folder / "exclusion.lock"
    lock = FileLock(probe, mode=0o600, fallback_to_soft=False)
    command = [sys.executable, "-I", "-S", "-c", _PROBE, str(probe)]
    try:
        with lock.acquire(timeout=_PROBE_TIMEOUT_S):  # another run may be testing too
            excluded = subprocess.run(command, timeout=_PROBE_TIMEOUT_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(folder, f"a lock in it cannot be tried: {error}") from error
    if excluded != 1:
        raise _unusable(folder, "two processes could hold the same lock in it at once")
    return folder


def _unusable(folder: Path, why: str) -> UserError:
    return UserError(
        f"the gate cannot use {folder}: {why}",
        do="AIRLOCK_GATE_DIR=/a/local/folder/of/yours, or mend that folder",
        code=ExitCode.PREFLIGHT,
    )
