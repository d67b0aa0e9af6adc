"""Disk space, checked before it is used."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_MIB = 1024 * 1024
_MARGIN = 1.02  # headers, metadata and directory entries


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise OSError (ENOSPC), with both figures, if `folder`'s disk cannot take `needed_bytes`.

    Writers of large files react to a full disk with all kinds of errors, and only after filling it.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes * _MARGIN > free_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {what} takes {needed_bytes / _MIB:,.0f} MiB, "
            f"{free_bytes / _MIB:,.0f} MiB are free",
            str(folder),
        )
