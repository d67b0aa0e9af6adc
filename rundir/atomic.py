"""Files and folders that are either complete or absent."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write UTF-8 text as `write_bytes` does; bytes that Python could not decode stay unchanged."""
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"), durable=durable)


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data` in one step; a reader sees the old file or the new one.

    With `durable` the bytes reach the disk before the name does. Raises OSError (on a full disk,
    for example), and then leaves the old file as it was.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
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


def _umask() -> int:
    """Return the umask: the permissions that a new file does not get."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux: to read it is to change it, for a moment and for all threads
        mask = os.umask(0o077)
        os.umask(mask)
        return mask
    return int(status.partition("Umask:")[2].split()[0], 8)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path`, complete and on disk, at the end.

    If `path` exists by then (two processes made the same thing), the existing one stays. On any
    exception the temporary folder is removed and `path` is not created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=owned(path.name)))
    temporary.chmod(0o777 & ~_umask())
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
    except PermissionError:
        return True
    return True
