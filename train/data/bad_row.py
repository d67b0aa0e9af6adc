"""What is wrong with a row of data."""

from __future__ import annotations

from typing import Any


class BadRowError(ValueError):
    """What is wrong with a row, as the rest of a sentence; `do` is what to type, if not to look."""

    def __init__(self, what: str, do: str = "") -> None:
        super().__init__(what, do)
        self.what, self.do = what, do

    def __str__(self) -> str:
        return self.what


def in_json(value: Any) -> str:
    """What kind of value it is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number" if value == value else "NaN"  # noqa: PLR0124 - which differs from itself
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def missing_column(name: str, row: dict[str, Any]) -> BadRowError:
    """A row lacks a column; those that it has are named."""
    return BadRowError(f"has no column `{name}`; its columns: {names_of(row)}")


def names_of(row: dict[str, Any]) -> str:
    """The columns of a row, for people."""
    return ", ".join(sorted(map(str, row))) or "none"
