"""Rows of a data file, each checked, with its place in the file when something is wrong."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode

COLUMNS = ("prompt", "response")


def read_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, prompt, response) of each row; a bad one raises UserError with its place."""
    with path.open("rb") as file:
        yield from rows_of(file, path)


def rows_of(lines: Iterable[bytes], path: Path) -> Iterator[tuple[int, str, str]]:
    """As `read_rows`, of the first lines of the file at `path`."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad_row(path, number, f"is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise _bad_row(path, number, f"is a {type(row).__name__}, not an object")
        for column in COLUMNS:
            _check_text(path, number, row, column)
        yield number, row["prompt"], row["response"]


def _check_text(path: Path, number: int, row: dict[str, Any], column: str) -> None:
    text = row.get(column)
    if column not in row:
        has = ", ".join(sorted(row)) or "none"
        raise _bad_row(path, number, f"has no column `{column}`; its columns: {has}")
    if not isinstance(text, str):
        raise _bad_row(path, number, f"has a {type(text).__name__} in `{column}`, not text")
    if not text.strip():
        raise _bad_row(path, number, f"has no text in `{column}`")
    if not _is_unicode(text):
        raise _bad_row(path, number, f"has half a character in `{column}`")


def _is_unicode(text: str) -> bool:
    """False for a lone surrogate, as in "\\ud83d": JSON can spell it, no text can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad_row(path: Path, number: int, what: str) -> UserError:
    return UserError(
        f"{path}:{number}: the row {what}",
        do=f"sed -n {number}p {shlex.quote(str(path))}",
        code=ExitCode.DATA,
    )
