"""Lines as they are appended to one file of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside
from rundir.paths import RunDir

MOST_BEHIND_BYTES = 512 << 10  # more is not caught up with, but left out
_MOST_COUNTED_BYTES = 64 << 20  # of a log whose lines are counted


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line, and where the next begins."""

    data: bytes
    end: int
    number: int | None = None  # from 1


class Tail:
    """A reader of what is appended to one file; a line that is not whole yet has to wait."""

    def __init__(self, run: RunDir, parts: tuple[str, ...], *, from_start: bool) -> None:
        self._run = run
        self._parts = parts
        self._path = os.path.join(run.path, *parts)  # noqa: PTH118 - looked at all the time
        self._inode = 0
        self.offset = 0
        self._number: int | None = 0  # lines before the offset; None: too many to count
        if not from_start:
            self._skip()

    def _skip(self) -> None:
        """Go to the end of the last whole line."""
        try:
            with inside(self._run, *self._parts) as file:
                there = os.fstat(file.fileno())
                self._inode, end = there.st_ino, there.st_size
                if end <= _MOST_COUNTED_BYTES:
                    while block := file.read(1 << 20):
                        whole = block.rfind(b"\n") + 1
                        self._number = (self._number or 0) + block.count(b"\n")
                        self.offset = file.tell() - len(block) + whole if whole else self.offset
                    return
                self._number = None
                file.seek(end - MOST_BEHIND_BYTES)
                self.offset = (
                    end - MOST_BEHIND_BYTES + file.read(MOST_BEHIND_BYTES).rfind(b"\n") + 1
                )
        except (NotFoundError, OSError):
            pass

    def new_lines(self) -> tuple[list[Line], bool]:
        """Return the lines added since the last call, and whether some had to be left out."""
        try:
            there = os.lstat(self._path)
        except OSError:
            return [], False
        if there.st_ino == self._inode and there.st_size == self.offset:  # most often
            return [], False
        is_another = self._inode not in (0, there.st_ino) or there.st_size < self.offset
        if is_another:
            self.offset, self._number = 0, 0
        self._inode = there.st_ino
        has_lost = is_another
        if there.st_size - self.offset > MOST_BEHIND_BYTES:
            self.offset, self._number, has_lost = there.st_size - MOST_BEHIND_BYTES, None, True
        lines = list(self.between(self.offset, there.st_size))
        if has_lost and not is_another:
            lines = lines[1:]  # what is left of the line in whose midst it begins
        if lines:
            self.offset = lines[-1].end
        return [self._numbered(line) for line in lines], has_lost

    def _numbered(self, line: Line) -> Line:
        if self._number is None:
            return line
        self._number += 1
        return Line(line.data, line.end, self._number)

    def between(self, start: int, end: int) -> Iterator[Line]:
        """Yield the whole lines that begin at `start` and end before `end`."""
        try:
            with inside(self._run, *self._parts) as file:
                file.seek(start)
                data = file.read(min(end - start, MOST_BEHIND_BYTES))
        except (NotFoundError, OSError):
            return
        for line in data.split(b"\n")[:-1]:
            start += len(line) + 1
            yield Line(line.rstrip(b"\r"), start)
