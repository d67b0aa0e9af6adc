"""What the ranks print, as it comes: their logs, followed and cut into lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_MOST_AT_ONCE = 1 << 20  # bytes read from one log at a time
_LONGEST_LINE = 1 << 16  # bytes after which a line is cut, should its end never come
_LINE_END = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)  # a last \r may be half of a \r\n

# Lines of Airlock's own, which come as events too, and in the order of all ranks.
_OWN = re.compile(
    r"\[Rank \d+\] (INIT: rank=\d"
    r"|LOCK: (waiting for |acquired!|released|still waiting: |its memory )"
    r"|RESTART: attempt \d|IMPORT: .* is left to the script: |MEM:[A-Z-]+ rss=)"
)


class LogTail:
    """One log, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self, *, last: bool = False) -> list[str] | None:
        """The lines that were ended since the last call, or None where there is nothing new.

        A carriage return ends a line too, so each state of a progress bar is one. A long text comes
        in pieces, call by call; with `last` its end as well, though it be no whole line.
        """
        data = self._read()
        if not data and not (last and self._rest):
            return None
        *parts, self._rest = _LINE_END.split(self._rest + data)
        ended = zip(parts[::2], parts[1::2], strict=True)
        lines = [line for line, end in ended if line or end != b"\r"]  # it may stand first, too
        if self._rest and ((last and not data) or len(self._rest) > _LONGEST_LINE):
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE)
        except OSError:  # it cannot be shown; the run is none the worse for it
            return b""
        self._offset += len(data)
        return data


class RankOutput:
    """The output of all ranks of a run, of every attempt."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._tails: dict[Path, LogTail] = {}

    def new_lines(self, *, last: bool = False) -> Iterator[list[str]]:
        """As `LogTail.new_lines`, rank after rank, less the lines that Airlock has put there.

        One piece of each rank, so that none silences the others; the `last` time all there is.
        """
        for path in sorted(self._logs.glob("attempt*/rank*.log")):
            self._tails.setdefault(path, LogTail(path))
        for tail in self._tails.values():
            while (lines := tail.new_lines(last=last)) is not None:
                if kept := [line for line in map(_without_own, lines) if line is not None]:
                    yield kept
                if not last:
                    break


def _without_own(line: str) -> str | None:
    """The line, or what stood there, without an end, when Airlock wrote one of its own."""
    own = _OWN.search(line)
    return line if own is None else line[: own.start()] or None
