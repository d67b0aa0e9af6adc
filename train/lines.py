"""Lines of a file as bytes and as text, however long and wrong they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LONGEST_ROW_BYTES = 16 << 20  # a longer one is no sample, and would take all memory


def numbered(file: Any, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """Lines as an editor counts them, less the byte order mark of the file's first, which is 1.

    Of one that is too long there is only so much as tells that it is. When a line is given out the
    file has been read to its end, and no further.
    """
    number = first - 1
    while line := file.readline(LONGEST_ROW_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > LONGEST_ROW_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_ROW_BYTES + 1)
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def decoded(line: bytes) -> str:
    """What is not UTF-8 becomes half characters, which every row is looked at for."""
    return line.decode("utf-8", errors="surrogateescape")
