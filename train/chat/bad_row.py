"""The error for a bad row of data."""

from __future__ import annotations

from typing import Any


class BadRowError(ValueError):
    """A bad row: `what` completes a sentence about it, `do` is the command to suggest.

    Without `do`, the command to look at the row is suggested.
    """

    def __init__(self, what: str, do: str = "") -> None:
        super().__init__(what, do)
        self.what, self.do = what, do

    def __str__(self) -> str:
        return self.what


def in_json(value: Any) -> str:
    """Return the kind of `value`, in JSON's terms."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number" if value == value else "NaN"  # noqa: PLR0124 - NaN differs from itself
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def missing_column(name: str, row: dict[str, Any]) -> BadRowError:
    """Return the error for a row that lacks a column; it names the columns that exist."""
    return BadRowError(f"has no column `{name}`; its columns: {names_of(row)}")


def names_of(row: dict[str, Any]) -> str:
    """Return the columns of a row, for people to read."""
    return ", ".join(sorted(map(str, row))) or "none"
