"""Files and folders that are either complete or absent; temporary ones; room for large ones."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rundir.units import MIB

_MARGIN = 1.02  # headers, metadata and directory entries


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write UTF-8 text as `write_bytes` does; bytes that Python could not decode stay unchanged."""
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"), durable=durable)


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data` in one step; a reader sees the old file or the new one.

    With `durable` the bytes reach the disk before the name does. Raises OSError (on a full disk,
    for example), and then leaves the old file as it was.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = new.open("xb")
    try:
        with file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and the folder itself, to the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path`, complete and on disk, at the end.

    If `path` exists by then (two processes made the same thing), the existing one stays. On any
    exception the temporary folder is removed and `path` is not created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(owned(path.name) + secrets.token_hex(4))
    temporary.mkdir()
    try:
        yield temporary
        sync_tree(temporary)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def owned(name: str) -> str:
    """Return the prefix for the name of a folder that belongs to this process."""
    return f".{name}.{os.getpid()}@{socket.gethostname()}."


def remove_abandoned(parent: Path, name: str = "*") -> None:
    """Remove the `owned` folders that killed processes of this host have left behind."""
    for path in parent.glob(f".{name}.*@*.*"):
        owner = re.search(r"\.(\d+)@(.+)\.[^.]+$", path.name)
        if owner and owner[2] == socket.gethostname() and not _is_alive(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise OSError (ENOSPC), with both figures, if `folder`'s disk cannot take `needed_bytes`.

    Writers of large files react to a full disk with all kinds of errors, and only after filling it.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes * _MARGIN > free_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {what} takes {needed_bytes / MIB:,.0f} MiB, "
            f"{free_bytes / MIB:,.0f} MiB are free",
            str(folder),
        )


def new_scratch(name: str, parent: Path | None = None) -> Path:
    """Return a new folder of this process for `airlock-NAME`, by default among temporary ones.

    Raises OSError when it cannot be created.
    """
    import tempfile  # ranks do without

    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent, f"airlock-{name}")
    return Path(tempfile.mkdtemp(dir=parent, prefix=owned(f"airlock-{name}")))


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield a folder as from `new_scratch`, and remove it at the end."""
    folder = new_scratch(name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
