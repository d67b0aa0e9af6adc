"""Lines, and elements of a JSON array, of files that are never in memory as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from train.data.sources import Source, wrong

_CHUNK_BYTES = 1 << 18

LONGEST_ROW_BYTES = 16 << 20  # a longer row is not a sample, and would take all memory


def numbered(file: Any, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yield lines numbered as in an editor, without the byte order mark of the file's line 1.

    A line that is too long is cut, but stays long enough to show it. When a line is yielded the
    file has been read to the end of that line, and no further.
    """
    number = first - 1
    while line := file.readline(LONGEST_ROW_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > LONGEST_ROW_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_ROW_BYTES + 1)
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def decoded(line: bytes) -> str:
    """Decode a line; what is not UTF-8 becomes lone surrogates, which every row is checked for."""
    return line.decode("utf-8", errors="surrogateescape")


def elements(file: Any, source: Source) -> Iterator[tuple[int, bytes | dict[str, Any], int]]:
    """Yield the elements of an array, each with the line that it begins on and its length.

    Raises UserError with the line of invalid JSON.
    """
    found_in = _Elements(file)
    try:
        while (found := found_in.next()) is not None:
            yield found
    except ValueError as error:
        line = found_in.line
        raise wrong(
            source.path,
            f"is not valid JSON at line {line}: {error}",
            f"sed -n {line}p {source.path}",
        ) from error


class _Elements:
    """Takes elements off the front of what was read of an array."""

    def __init__(self, file: Any) -> None:
        self._file, self._decoder = file, json.JSONDecoder()
        self._text, self._at, self.line = "", 0, 1
        self._is_first, self._is_whole = True, False
        self._undecoded = b""

    def next(self) -> tuple[int, bytes | dict[str, Any], int] | None:
        """Return the next element's line, value and length. Raises ValueError for invalid JSON."""
        mark = self._mark()
        if mark == "]" and not self._is_first:
            return None
        if mark != ("[" if self._is_first else ","):
            raise ValueError(f"{mark!r} where an array has {'[' if self._is_first else ', or ]'}")
        self._move(self._at + 1)
        was_first, self._is_first = self._is_first, False
        if self._mark() == "]" and was_first:
            return None
        line = self.line
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                # A number at the end of what was read may continue.
                if end < len(self._text) or self._is_whole:
                    break
            except ValueError:
                if self._is_whole or len(self._text) - self._at > LONGEST_ROW_BYTES:
                    raise
            self._read(len(self._text) - self._at)
        length = end - self._at
        self._move(end)
        # Elements that are not objects are left to the check of rows.
        return line, value if isinstance(value, dict) else json.dumps(value).encode(), length

    def _mark(self) -> str:
        """Return the next character that is not a space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n\ufeff":
                self._move(self._at + 1)
            if self._at < len(self._text) or self._is_whole:
                return self._text[self._at : self._at + 1]
            self._read(0)

    def _move(self, at: int) -> None:
        self.line += self._text.count("\n", self._at, at)
        self._at = at

    def _read(self, at_least: int) -> None:
        """Read as much again as is there, so that a long element is not parsed too often."""
        data = self._file.read(max(_CHUNK_BYTES, at_least))
        self._is_whole = not data
        whole = self._undecoded + data
        # A character may be cut in the middle; it ends within the next three bytes.
        cut = len(whole) if self._is_whole else _last_start(whole)
        self._undecoded = whole[cut:]
        self._text, self._at = self._text[self._at :] + decoded(whole[:cut]), 0


def _last_start(data: bytes) -> int:
    """Return the index at which the last UTF-8 character begins."""
    for at in range(len(data) - 1, max(len(data) - 5, -1), -1):
        if data[at] & 0xC0 != 0x80:  # noqa: PLR2004 - continuation bytes begin with bits 10
            return at
    return len(data)
