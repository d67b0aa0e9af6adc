"""The paths in data.path: one, or several with a weight for each."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from rundir.errors import ExitCode, UserError

PREFIX = "hf:"  # prefix of a dataset on the Hub


@dataclass(frozen=True, slots=True)
class DataPath:
    """A path, or hf:OWNER/NAME, and how often each of its rows comes in an epoch."""

    path: str
    weight: float = 1.0

    @property
    def is_of_hub(self) -> bool:
        """True if it names a dataset on the Hub."""
        return self.path.startswith(PREFIX)

    @property
    def name(self) -> str:
        """A short name, for where there is no room for a path."""
        return self.path if self.is_of_hub else Path(self.path).name

    def __str__(self) -> str:
        return self.path if self.weight == 1 else f"{self.path}:{self.weight!r}"


def data_paths(text: str) -> list[DataPath]:
    """Return the parts of PATH[:WEIGHT],…; a path that exists as it stands is one part.

    Raises UserError for an invalid weight.
    """
    if not text:
        return []
    if _is_there(text) or ("," in text and _is_there(text.rpartition(":")[0] or text)):
        return [_parsed(text)]
    return [_parsed(part.strip()) for part in text.split(",") if part.strip()]


def as_text(paths: list[DataPath]) -> str:
    """Return the text that `data_paths` takes apart."""
    return ",".join(map(str, paths))


def absolute(path: str, base: Path) -> str:
    """Return a path as it is below `base`, if it is a relative one; ~ is the user's home."""
    return str(base / os.path.expanduser(path))  # noqa: PTH111 - never raises


def absolute_paths(text: str, base: Path) -> str:
    """Return the text of `data_paths` with each path that is not the Hub's made absolute."""
    paths = data_paths(text)
    return as_text(
        [
            path if path.is_of_hub else replace(path, path=absolute(path.path, base))
            for path in paths
        ]
    )


def name_of(text: str) -> str:
    """Return a short name for what data.path names, for files and folders."""
    paths = data_paths(text)
    first = Path(paths[0].path).stem if paths else "data"
    return first if len(paths) == 1 else f"{first}+{len(paths) - 1}"


def _parsed(text: str) -> DataPath:
    path, is_given, weight = text.rpartition(":")
    if not is_given or not path or path == PREFIX[:-1] or _is_there(text):
        return DataPath(text)
    try:
        number = float(weight)
    except ValueError:
        return DataPath(text)  # a colon in a name
    if not (number > 0 and math.isfinite(number)):
        raise UserError(
            f"{text}: the weight of data is above 0: how often a row comes in an epoch",
            do=f"--data {path}:0.5 for half of its rows in an epoch, {path}:2 for each row twice",
            code=ExitCode.USAGE,
        )
    return DataPath(path, number)


def _is_there(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a name, no home, a NUL
        return False
