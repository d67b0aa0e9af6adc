"""Lines of files that grow, read in pieces: a file of any size costs one piece of memory."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from monitor.http.json_api import BadRequestError

LONGEST_BYTES = 1 << 20  # of a line; the rest of a longer one is passed over
_MOST_CURSOR_BYTES = 1 << 20
_MOST_OFFSET = 1 << 60


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines, each with the offset behind it; `next_offset` is where the next piece begins."""

    lines: list[tuple[int, bytes]]
    next_offset: int


def read_piece(file: BinaryIO, offset: int, most_bytes: int) -> Piece:
    """Return the whole lines from `offset` on, of at least one line or the file's end.

    A line that is not whole has to wait; one beyond the longest that there may be is passed over.
    """
    file.seek(offset)
    data = file.read(most_bytes)
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) == most_bytes:
        data += file.read(LONGEST_BYTES)
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) == most_bytes + LONGEST_BYTES:
            return Piece([], offset + len(data))
    lines, at = [], 0
    while at < end:
        after = data.index(b"\n", at) + 1
        lines.append((offset + after, data[at : after - 1]))
        at = after
    return Piece(lines, offset + end)


def packed(offsets: dict[str, int]) -> str:
    """Return a cursor: how far each file was read."""
    text = json.dumps(offsets, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).decode().rstrip("=")


def unpacked(cursor: str) -> dict[str, int]:
    """Return what `packed` was given. Raises BadRequestError for anything else."""
    try:
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        content = json.loads(zlib.decompressobj().decompress(data, _MOST_CURSOR_BYTES))
        offsets = {
            name: offset
            for name, offset in content.items()
            if type(offset) is int and 0 <= offset < _MOST_OFFSET
        }
        if offsets != content:
            raise ValueError("no offset")
    except (ValueError, AttributeError, zlib.error, RecursionError) as error:
        raise BadRequestError(
            f"cursor {cursor[:40]!r} is none of this server", "leave it out to begin at the start"
        ) from error
    return offsets
