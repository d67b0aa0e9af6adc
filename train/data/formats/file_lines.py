"""Lines of text files that are never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from train.chat.bad_row import BadRowError

LONGEST_ROW_BYTES = 16 << 20  # a longer row is not a sample, and would take all memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TOO_LONG = BadRowError(f"has more than {LONGEST_ROW_BYTES >> 20} MiB")


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
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def filled_lines(file: Any, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from byte `start` on that are not blank, numbered from 2 unless it is 0."""
    if start:
        file.seek(start)
    for number, line in numbered(file, 2 if start else 1):
        if not line.isspace():
            yield number, line


def decoded(line: bytes) -> str:
    """Decode a line; what is not UTF-8 becomes lone surrogates, which every row is checked for."""
    return line.decode("utf-8", errors="surrogateescape")
