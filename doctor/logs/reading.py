"""Logs as they are found in practice: files, folders, standard input; gzipped, huge, truncated."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from doctor.logs.prefix import ANSI
from rundir.errors import UserError

STDIN = "-"
_PIECE = 4 << 20  # bytes read at a time
_LONGEST = 4 * _PIECE  # of a line without an end
_MOST = 512 << 20  # bytes of a larger file that are searched
_OPEN_TRACEBACK = 64 << 10  # bytes at the end of a piece in which a traceback may be incomplete
_TRACEBACK = b"Traceback (most recent call last)"

_IS_LOG = re.compile(
    r"(^[^.]+|\.(log|out|err|txt|stdout|stderr)(\.\d+)?|\.[oe]\d+|[-.]\d+)(\.gz)?$", re.IGNORECASE
)
_NOT_LOGS = (".pt", ".bin", ".json", ".py", ".npy", ".gz.part")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)(?!\d)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"/(?:attempt_)?\d+/(\d+)/std(?:err|out)\.log(?:\.gz)?$")  # torchrun's


@dataclass(frozen=True, slots=True)
class Log:
    """One log. `name` is for display; `rank` comes from the name; without a `path` it is stdin.

    Of a file larger than `most_bytes`, a quarter of that is read from its head, the rest from its
    tail.
    """

    name: str
    path: Path | None
    rank: int | None = None
    most_bytes: int | None = None  # None stands for _MOST


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Whole lines of a log, without colours; `first_line` is the number of the first."""

    data: bytes
    first_line: int


def find_logs(name: str) -> list[Log]:
    """Return the logs that `name` stands for: a file, all logs below a folder, or `-`.

    Raises UserError when there is nothing to read.
    """
    if name == STDIN:
        return [Log("(stdin)", None)]
    path = Path(name)
    if path.is_dir():
        logs = [
            Log(str(log_path), log_path, rank_of_name(log_path)) for log_path in _logs_below(path)
        ]
        if not logs:
            raise UserError(f"no logs found below {name}", do="./airlock doctor FILE")
        return logs
    if not path.exists():
        raise UserError(f"there is no {name}", do="./airlock doctor RUN, FILE, FOLDER or -")
    return [Log(name, path, rank_of_name(path))]


def rank_of_name(path: Path) -> int | None:
    """Return the rank in a file's name or in torchrun's folders, if any."""
    rank = _RANK_IN_NAME.search(path.name) or _RANK_FOLDER.search(path.absolute().as_posix())
    return int(rank[1]) if rank else None


def _logs_below(folder: Path) -> list[Path]:
    """Return all files named like logs; if there are none, all text files."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    files = [path for path in files if not _is_hidden(path.relative_to(folder))]
    files = [path for path in files if not path.name.endswith(_NOT_LOGS)]
    named = [path for path in files if _IS_LOG.search(path.name)]
    readable = [path for path in named or files if _is_text(path)]
    return sorted(readable, key=natural)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def natural(path: Path) -> list[str]:
    """Sort key that puts rank2 before rank10."""
    return [part.zfill(12) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(8192)
    except OSError:
        return False
    return b"\0" not in start or start[:2] in (*_BOMS, b"\x1f\x8b")


def blocks(log: Log) -> Iterator[LogBlock]:
    """Yield the lines of a log in blocks; for files above 512 MiB, only head and tail.

    A traceback at the end of a block is held back for the next one, so that none is split. Raises
    UserError for a file that cannot be read; a gzip file is read up to where it is damaged.
    """
    rest, line = b"", 1
    try:
        for piece, num_skipped in _pieces(log):
            if num_skipped:  # a partial line before the gap goes first
                yield LogBlock(_plain(rest), line)
                line += rest.count(b"\n") + num_skipped
                rest = b""
            rest += piece
            cut = _cut(rest) if len(rest) >= _PIECE else 0
            if cut:
                block, rest = rest[:cut], rest[cut:]
                yield LogBlock(_plain(block), line)
                line += block.count(b"\n")
    except OSError as error:
        raise UserError(f"{log.name} cannot be read: {error.strerror}", do="look at it") from error
    if rest:
        yield LogBlock(_plain(rest), line)


def _plain(data: bytes) -> bytes:
    return _without_margin(ANSI.sub(b"", data) if b"\x1b" in data else data)


def _without_margin(data: bytes) -> bytes:
    """Remove the margin common to all lines, as in a log that was copied from a web page."""
    if not data.startswith((b" ", b"\t")):
        return data
    lines = data.split(b"\n")
    margins = (line[: len(line) - len(line.lstrip(b" \t"))] for line in lines if line.strip())
    margin = min(margins, key=len, default=b"")
    return b"\n".join(line.removeprefix(margin) for line in lines) if margin else data


def _cut(data: bytes) -> int:
    """Return the length of the whole lines in `data`, less a traceback that may go on."""
    cut = data.rfind(b"\n") + 1
    start = data.rfind(_TRACEBACK, max(0, cut - _OPEN_TRACEBACK), cut)
    if start >= 0:  # the line above it tells whether it is harmless
        newline = data.rfind(b"\n", 0, start)
        return data.rfind(b"\n", 0, max(0, newline)) + 1
    if not cut and len(data) > _LONGEST:
        return data.rfind(b"\r") + 1 or len(data)
    return cut


_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def _pieces(log: Log) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes of a log as UTF-8, each with the number of lines skipped before them."""
    if log.path is None:
        yield from ((piece, 0) for piece in _read(sys.stdin.buffer))
        return
    with log.path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if start == b"\x1f\x8b":
            yield from ((piece, 0) for piece in _read(_Unzipped(file)))
        elif start in _BOMS:
            decoder = codecs.getincrementaldecoder(_BOMS[start])(errors="replace")
            yield from ((decoder.decode(piece).encode(), 0) for piece in _read(file))
        elif log.path.is_file() and log.path.stat().st_size > (log.most_bytes or _MOST):
            yield from _head_and_tail(file, log.path.stat().st_size, log.most_bytes or _MOST)
        else:
            yield from ((piece, 0) for piece in _read(file))


class _Unzipped(io.RawIOBase):
    """A gzip file, read up to where it is damaged: that of a killed job has no end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""


def _read(file: BinaryIO | io.RawIOBase) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _head_and_tail(file: BinaryIO, size: int, most: int) -> Iterator[tuple[bytes, int]]:
    left = most // 4
    while left > 0 and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
        yield piece, 0
    num_lines, start = 0, size - (most - most // 4)
    while (here := file.tell()) < start and (piece := file.read(min(_PIECE, start - here))):
        num_lines += piece.count(b"\n")
    file.readline()
    num_lines += 1
    for piece in _read(file):
        yield piece, num_lines
        num_lines = 0
