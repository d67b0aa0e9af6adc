"""The lines of a block, looked up by position; each state of a progress bar counts as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from doctor.logs.prefix import Stripped, strip
from doctor.logs.reading import LogBlock

_LONGEST = 8192  # bytes of a line that are examined
# Airlock's own report in the output of a run quotes the doctor, and so is no evidence. Its first
# line says which rank failed and how, as a launcher's summary does; those below it are indented.
_REPORT = re.compile(rb"^airlock: the run (?:failed|hung): [^\n]*\n((?:  [^\n]*(?:\n|$))*)", re.M)


@dataclass(frozen=True)
class Segment:
    """The text between two newlines or carriage returns: bytes [start, end) of a block."""

    start: int
    end: int
    raw: str

    @cached_property
    def stripped(self) -> Stripped:
        """The segment without its prefixes."""
        return strip(self.raw)


class Segments:
    """The segments of one block, created on demand."""

    def __init__(self, block: LogBlock) -> None:
        self.data = block.data
        self.lower = block.data.lower()  # ASCII only, so that positions are the same in both
        self._made: dict[int, Segment] = {}
        self._line, self._counted = block.first_line, 0

    def start_at(self, position: int) -> int:
        """Return the start of the segment that contains `position`."""
        newline = self.data.rfind(b"\n", 0, position)
        return max(newline, self.data.rfind(b"\r", newline + 1, position)) + 1

    def at(self, start: int) -> Segment:
        """Return the segment that begins at `start`."""
        made = self._made.get(start)
        if made is None:
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end
            stop = self.data.find(b"\r", start, end)
            end = end if stop < 0 else stop
            raw = self.data[start : min(end, start + _LONGEST)].decode(errors="replace")
            made = self._made[start] = Segment(start, end, raw)
        return made

    def after(self, segment: Segment, most: int) -> Iterator[Segment]:
        """Yield up to `most` segments that follow, skipping empty ones."""
        position = segment.end
        for _ in range(most):
            while position < len(self.data) and self.data[position] in b"\r\n":
                position += 1
            if position >= len(self.data):
                return
            yield (segment_at := self.at(position))
            position = segment_at.end

    def before(self, segment: Segment, most: int) -> Iterator[Segment]:
        """Yield up to `most` preceding segments, the nearest first, skipping empty ones."""
        position = segment.start
        for _ in range(most):
            while position > 0 and self.data[position - 1] in b"\r\n":
                position -= 1
            if position == 0:
                return
            yield (segment_at := self.at(self.start_at(position)))
            position = segment_at.start

    def line_of(self, segment: Segment) -> int:
        """Return the number of the segment's line in the log."""
        if segment.start < self._counted:
            return self._line - self.data.count(b"\n", segment.start, self._counted)
        self._line += self.data.count(b"\n", self._counted, segment.start)
        self._counted = segment.start
        return self._line


def lines_of_own_report(segments: Segments) -> set[int]:
    """Return the starts of the lines below the first one of each report in a block."""
    starts = set[int]()
    for report in _REPORT.finditer(segments.data):
        start = report.start(1)
        while start < report.end(1):
            starts.add(start)
            start = segments.data.find(b"\n", start) + 1 or report.end(1)
    return starts
