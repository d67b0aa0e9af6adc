"""What a dropped set is called: in the name of its run, and among the sets that are scored."""

from __future__ import annotations

import re
from pathlib import Path

_LONGEST = 40  # letters: what `--name` and `airlock evaluate NAME=DATA` take


def set_name(dropped: str) -> str:
    """Return the name of a dropped file or folder, for `--name` and for `airlock evaluate`.

    The name without its suffix, as far as both take it: letters, digits, - and _.
    """
    stem = Path(dropped).stem or dropped
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:_LONGEST].rstrip("-_")
    return "data" if name in ("", "latest") else name


def free_name(name: str, key: str, taken: set[str]) -> str:
    """Return `name`, or where another set is called so, the name with the start of `key`."""
    if name not in taken:
        return name
    ending = f"-{key[:6]}"
    return name[: _LONGEST - len(ending)] + ending
