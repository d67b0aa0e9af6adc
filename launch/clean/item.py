"""Something that could be removed, or that is kept although it is old."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["run", "checkpoints", "cache", "model", "left over"]
TRASH = ".airlock-trash."  # begins the name of what is being removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to remove, and what it frees.

    `used` says why the thing is not to be removed now, or ""; it is given the path, at which the
    thing is then.
    """

    kind: Kind
    path: Path
    paths: tuple[Path, ...] = ()  # what goes, if that is not `path` as a whole
    size_bytes: int
    age_s: float
    what: str  # in a few words: done, failed, not used since
    used: Callable[[Path], str] = lambda _: ""

    @property
    def as_json(self) -> dict[str, Any]:
        """The item as `--json` prints it."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "age_s": round(self.age_s),
            "what": self.what,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One thing that is old enough, and kept all the same."""

    kind: Kind
    path: Path
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept in any case: whatever is younger, and the last of each profile."""

    older_than: str  # as it was typed
    older_than_s: float
    keep: int


def freed_bytes(path: Path) -> int:
    """Return the bytes on disk that removing `path` frees; links are neither followed nor counted.

    A file with another name elsewhere, such as the weights of a kept model, frees nothing.
    """
    total = 0
    for folder, _, names in os.walk(path, followlinks=False):
        for name in names:
            try:
                stat = os.lstat(Path(folder, name))
            except OSError:  # removed meanwhile
                continue
            total += stat.st_blocks * 512 if stat.st_nlink == 1 else 0
    return total
