"""Lines of a file as bytes and as text, however long and wrong they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LONGEST_ROW_BYTES = 16 << 20  # a longer one is no sample, and would take all memory


def numbered(file: Any) -> Iterator[tuple[int, bytes]]:
    """Lines from 1 as an editor counts them, less the byte order mark of the first.

    Of one that is too long there is only so much as tells that it is.
    """
    number = 0
    while line := file.readline(LONGEST_ROW_BYTES + 1):
        number += 1
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        while len(line) > LONGEST_ROW_BYTES and not line.endswith(b"\n"):
            line = file.readline(LONGEST_ROW_BYTES + 1)


def decoded(line: bytes) -> str:
    """What is not UTF-8 becomes half characters, which every row is looked at for."""
    return line.decode("utf-8", errors="surrogateescape")
