"""Removal in two steps: renamed to a name that says so, then deleted.

So a kill leaves nothing that looks whole, and the next clean goes on with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR

from launch.clean.item import TRASH, Item, freed_bytes


def remove(item: Item) -> str:
    """Remove what `item` names; return "", or why it is kept after all.

    Raises OSError, naming the file, for one that cannot be removed; the rest is gone then.
    """
    for path in item.paths or (item.path,):
        if path.name.startswith(TRASH):
            _delete(path)
        elif why := _remove(path, item):
            return why
    return ""


def _remove(path: Path, item: Item) -> str:
    trash = path.with_name(f"{TRASH}{path.name}.{secrets.token_hex(2)}")
    try:
        if why := item.used(path):
            return why
        path.rename(trash)
    except FileNotFoundError:
        return ""  # another clean was first
    if why := item.used(trash):  # a run that has begun in between has seen one or the other
        with contextlib.suppress(OSError):  # it was made again: the old one can go
            trash.rename(path)
            return why
    _delete(trash)
    return ""


def _delete(trash: Path) -> None:
    """Delete all that can be; raise OSError for the first thing that cannot.

    Links are deleted, not followed. What another clean deletes at the same time is gone as well.
    """
    errors: list[OSError] = []
    for folder, names, files in os.walk(trash, topdown=False):
        for name in (*files, *names):
            _delete_entry(Path(folder, name), errors)
    _delete_entry(trash, errors)
    if errors:
        raise errors[0]


def _delete_entry(path: Path, errors: list[OSError]) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        errors.append(error)


def left_over(folders: list[Path]) -> Iterator[Item]:
    """Yield what an earlier clean has renamed, and was ended before it had deleted it."""
    for folder in folders:
        for path in sorted(folder.glob(f"{TRASH}*")) if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # another clean was first
                stat = path.lstat()
                if S_ISDIR(stat.st_mode):
                    yield Item(
                        kind="left over",
                        path=path,
                        size_bytes=freed_bytes(path),
                        age_s=time.time() - stat.st_mtime,
                        what="an earlier clean did not get to its end",
                    )
