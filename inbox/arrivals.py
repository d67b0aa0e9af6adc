"""What has been dropped, and whether it is complete."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inbox.layout import Layout, entries

READY = ".ready"  # NAME.ready beside NAME, or .ready in a folder: it is complete now
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", "~")
Print = tuple[tuple[str, int, int, int], ...]  # name, inode, size and mtime (ns) of each file


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file or folder in a watched folder."""

    path: Path
    priority: str

    @property
    def marker(self) -> Path:
        """The file beside it that says that it is complete, if it exists."""
        return self.path.with_name(self.path.name + READY)

    @property
    def is_marked(self) -> bool:
        """True if that file exists; a name may be too long for one."""
        return os.path.isfile(self.marker)  # noqa: PTH113 - Path's raises then


@dataclass(slots=True, kw_only=True)
class Drops:
    """What was dropped: what can be taken, and why the rest has to wait, by its path."""

    ready: list[Arrival] = field(default_factory=list)
    waiting: dict[Path, str] = field(default_factory=dict)


class Arrivals:
    """Watches the folders where people drop data; remembers when each thing changed last."""

    def __init__(
        self, layout: Layout, settle_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._layout, self._settle_s, self._now = layout, settle_s, now
        self._since: dict[Path, tuple[Print, float]] = {}

    def scan(self) -> Drops:
        """Look at everything that lies there."""
        drops, since = Drops(), self._since
        self._since = {}  # without what is gone
        for priority, folder in self._layout.drops().items():
            for entry in entries(folder):
                path = Path(entry.path)
                if is_ignored(entry.name) or path in self._layout.drops().values():
                    continue
                if path in since:
                    self._since[path] = since[path]
                if why := _why_never(path) or self._why_not_yet(path):
                    drops.waiting[path] = why
                else:
                    drops.ready.append(Arrival(path=path, priority=priority))
        return drops

    def _why_not_yet(self, path: Path) -> str:
        """Return why this may still be written; "" once it is marked, or the same for long enough.

        Times are of the monotonic clock, and an mtime is only compared with itself: a clock that
        jumps changes nothing.
        """
        if Arrival(path=path, priority="").is_marked or (path / READY).is_file():
            return ""
        try:
            prints, unfinished = _fingerprint(path)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if unfinished:
            return f"holds {unfinished}, which is unfinished by its name"
        before, since = self._since.get(path, (None, 0.0))
        if before != prints:
            self._since[path] = (prints, self._now())
            return "has just come, or changed"
        return _why_unfinished(prints, self._now() - since, self._settle_s)


def _why_unfinished(prints: Print, still_s: float, settle_s: float) -> str:
    if not any(size for _, _, size, _ in prints):
        return "is empty"
    if still_s < settle_s:
        return f"has not changed for {still_s:.0f} s of {settle_s:g}"
    written = next((name for name, *_ in prints if _is_open_for_writing(name)), None)
    return "" if written is None else f"is held open for writing: {written}"


def is_ignored(name: str) -> bool:
    """Return whether nothing is to be done about a name: hidden, unfinished, or a marker."""
    return name.startswith(".") or name.endswith((*_UNFINISHED, READY))


def _why_never(path: Path) -> str:
    """Return why this cannot be taken as it is; "" if it can."""
    if path.is_symlink() and not path.readlink().is_absolute():
        return "is a relative link, which would lead nowhere once it is moved: make it absolute"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    is_data = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return "" if is_data else "is neither a file nor a folder"


def _fingerprint(path: Path) -> tuple[Print, str]:
    """Return what identifies the present content, and a file that is unfinished by its name."""
    if not path.is_dir():
        return (_print_of(str(path)),), ""
    parts, unfinished = [], ""
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(_UNFINISHED):
                unfinished = name
            parts.append(_print_of(f"{folder}/{name}"))
    return tuple(sorted(parts)), unfinished


def _print_of(file: str) -> tuple[str, int, int, int]:
    status = os.stat(file)  # noqa: PTH116 - folders may hold very many
    return file, status.st_ino, status.st_size, status.st_mtime_ns


def _is_open_for_writing(name: str) -> bool:
    """Return whether a process of this machine has the file open for writing, if that can be told.

    The kernel grants a read lease only if none has. It needs the file's owner (or root), and a
    local file system; elsewhere the file's size and mtime have to do.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
