"""JSON: a row a line (JSONL), or values over several lines, maybe in an array.

Which of the two a file is, its content says whatever its name.
"""

from __future__ import annotations

import json
import re
import shlex
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any

from rundir.errors import UserError
from train.chat.column_names import ROW_NAMES
from train.chat.messages import is_message
from train.data.formats.file_lines import LONGEST_ROW_BYTES, decoded, filled_lines
from train.data.formats.format import Format
from train.data.formats.source import Source, wrong
from train.data.formats.text_format import TextFormat, TextRow

_CHUNK_BYTES = 1 << 18
_LOOKED_AT_CHARS = 1 << 16  # to see how rows are laid out
_DECODER = json.JSONDecoder()
_KEY = re.compile(r'\s*[{,]\s*(?=")')
_COLON = re.compile(r"\s*:\s*")
_OBJECTS = re.compile(r"\[\s*(?={)")


def is_a_row_a_line(start: bytes) -> bool:
    """Return whether a file that begins so has a row on each line, good or bad.

    `start` holds the whole first line, if that is no longer than a row may be.
    """
    text = start.strip()
    first, _, rest = (part.strip() for part in text.partition(b"\n"))
    if first.startswith(b"["):  # an array of plain values is a bad row
        return b"{" not in first and first.endswith(b"]")
    if not first.startswith(b"{"):
        return True
    goes_on = first.endswith((b"[", b":")) or (first.endswith((b"{", b",")) and rest[:1] == b'"')
    return not goes_on and array_at(decoded(text), 0) is None


def array_at(text: str, at: int) -> int | None:
    """Return the place of the array of rows in the object at `at`; None if the object is a row.

    It is one if another follows, if it has a column that rows have, or if the array is of messages.
    The text may end within it.
    """
    whole, end = _value(text, at)
    if text[end:].strip() or any(name.lower() in ROW_NAMES for name in whole or ()):
        return None
    while key := _KEY.match(text, at):
        name, at = _value(text, key.end())
        colon = _COLON.match(text, at)
        if colon is None or name.lower() in ROW_NAMES:
            return None
        if objects := _OBJECTS.match(text, colon.end()):
            return None if is_message(_value(text, objects.end())[0]) else colon.end()
        _, at = _value(text, colon.end())
    return None


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the value at `at` and its end; None and the text's end if it is cut or invalid."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, len(text)


def elements(file: Any, source: Source) -> Iterator[TextRow]:
    """Yield the elements of an array, or objects that follow each other.

    Each comes with the line that it begins on and its length. Raises UserError.
    """
    reader = _JsonReader(file, source)
    try:
        yield from reader.rows()
    except (ValueError, RecursionError) as error:
        raise wrong(
            source.path,
            f"is not valid JSON at line {reader.line}: {error}",
            f"{source.printed_by} | sed -n '{reader.line}{{p;q}}' | head -c 2000",
        ) from error


class _JsonReader:
    """Takes values off the front of what was read."""

    def __init__(self, file: Any, source: Source) -> None:
        self._file, self._source = file, source
        self._decoder = getincrementaldecoder("utf-8")(errors="surrogateescape")
        self._text, self._at, self.line = "", 0, 1
        self._is_whole = False

    def rows(self) -> Iterator[TextRow]:
        """Yield all rows. Raises ValueError for invalid JSON."""
        while len(self._text) < _LOOKED_AT_CHARS and not self._is_whole:
            self._read(0)
        mark = self._mark()
        place = array_at(self._text, self._at) if mark == "{" else None
        if place is not None:
            self._move(place)
        if mark == "[" or place is not None:
            yield from self._array()
            if place is not None:
                self._end_of_object()
            if mark := self._mark():
                raise ValueError(f"{mark!r} after the end")
            return
        while self._mark():
            yield self._row()

    def _array(self) -> Iterator[TextRow]:
        self._take("[")
        if self._mark() != "]":
            yield self._row()
            while self._mark() != "]":
                self._take(",")
                yield self._row()
        self._take("]")

    def _end_of_object(self) -> None:
        """Take what follows the array of rows. Raises UserError for another list."""
        while self._mark() == ",":
            self._take(",")
            name, _ = self._value()
            self._take(":")
            if self._mark() == "[":
                raise self._has_another(name)
            self._value()
        self._take("}")

    def _has_another(self, name: Any) -> UserError:
        take = f"import json, sys; data = json.load(sys.stdin)[{name!r}]"
        program = f"{take}; print(*map(json.dumps, data), sep='\\n')"
        return wrong(
            self._source.path,
            f"has rows in a list, and another list in `{name}`, at line {self.line}",
            f"{self._source.printed_by} | python3 -c {shlex.quote(program)} > rows.jsonl   # and "
            f"--data rows.jsonl; or the other's name in the place of {name}",
        )

    def _row(self) -> TextRow:
        """Take a row; what is no object is left to the check of rows."""
        self._mark()
        line = self.line
        value, length = self._value()
        return line, value if isinstance(value, dict) else json.dumps(value).encode(), length

    def _value(self) -> tuple[Any, int]:
        """Take a value; return it and its length."""
        self._mark()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # A number at the end of what was read may continue.
                if end < len(self._text) or self._is_whole:
                    break
            except ValueError:
                if self._is_whole or len(self._text) - self._at > LONGEST_ROW_BYTES:
                    raise
            self._read(len(self._text) - self._at)
        length = end - self._at
        self._move(end)
        return value, length

    def _take(self, mark: str) -> None:
        """Take one character."""
        if (mark_now := self._mark()) != mark:
            raise ValueError(f"{mark_now!r} where there should be {mark!r}")
        self._move(self._at + 1)

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
        """Read as much again as is there, so that a long value is not parsed too often."""
        data = self._file.read(max(_CHUNK_BYTES, at_least))
        self._is_whole = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._is_whole)
        self._at = 0


class JsonLines(TextFormat):
    """A row of JSON a line, not parsed."""

    name, title, endings = "jsonl", "JSONL", (".jsonl", ".ndjson")

    def by_content(self, start: bytes) -> Format:
        return JSONL if is_a_row_a_line(start) else JSON

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        return ((number, line, len(line)) for number, line in filled_lines(file, start))


class JsonValues(TextFormat):
    """Rows of JSON over several lines."""

    name, title, endings = "json", "JSON", (".json",)
    begins_at_any_row = False

    def by_content(self, start: bytes) -> Format:
        return JSONL.by_content(start)

    def row_command(self, source: Source, number: int) -> str:
        return f"{source.printed_by} | tail -n +{number} | head -c 2000"

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        return elements(file, source)


JSONL, JSON = JsonLines(), JsonValues()
