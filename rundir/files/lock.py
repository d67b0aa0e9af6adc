"""A lock on an open file, by flock(2): the kernel frees it however its holder ends.

No pid is compared: one may be reused, or count in another container.
"""

from __future__ import annotations

import fcntl
import time

_ASKED_S = 0.2  # who only asks (`is_locked`) has the lock for a moment, which is over within this


def lock(descriptor: int) -> bool:
    """Take the lock until the file is closed; return whether it could be taken.

    Raises OSError on a file system without locks.
    """
    deadline = time.monotonic() + _ASKED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_ASKED_S / 20)
        else:
            return True


def is_locked(descriptor: int) -> bool:
    """Return whether another process has the lock; False on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
