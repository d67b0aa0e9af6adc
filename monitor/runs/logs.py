"""The logs of a run: which there are, and their lines, from a place on or the last ones."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside, names_inside
from monitor.runs.lines import packed, read_piece, unpacked
from rundir.masking import Mask
from rundir.paths import RunDir

_ATTEMPT = re.compile(r"attempt(\d{1,9})")
_LOG = re.compile(r"([\w.-]+)\.log")
_PIECE_BYTES = 256 << 10
_BUDGET_BYTES = 64 << 20  # that one request looks through
_LAST_BYTES = 1 << 20  # the last lines are looked for here
_LONGEST = 20_000  # characters of a line that is shown
_MOST_TEXT = 4 << 20  # characters of one answer
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log: `run`, `agent`, `rank0`, …; ranks have one for each attempt."""

    name: str
    attempt: int | None
    parts: tuple[str, ...]


def log_files(run: RunDir) -> list[LogFile]:
    """Return the logs that there are, the run's own first."""
    files = []
    for name in names_inside(run, "logs"):
        if is_log := _LOG.fullmatch(name):
            files.append(LogFile(is_log[1], None, ("logs", name)))
        elif is_attempt := _ATTEMPT.fullmatch(name):
            for inner in names_inside(run, "logs", name):
                if is_log := _LOG.fullmatch(inner):
                    attempt = int(is_attempt[1])
                    files.append(LogFile(is_log[1], attempt, ("logs", name, inner)))
    return sorted(files, key=_order)


def _order(log: LogFile) -> tuple[bool, int, str, int, str]:
    rank = re.fullmatch(r"(\D*)(\d*)", log.name)
    prefix, number = (rank[1], int(rank[2] or 0)) if rank else (log.name, 0)
    return log.name != "run", log.attempt or 0, prefix, number, log.name


def logs_page(  # noqa: PLR0913 - the query's parameters
    run: RunDir,
    mask: Mask,
    *,
    file: str = "",
    attempt: int | None = None,
    after: str = "",
    offset: int = 0,
    limit: int = 1000,
    last: int = 0,
    search: str = "",
) -> dict[str, Any]:
    """Return lines of one log, each with its number from 1, and the cursor that goes on.

    `file` "" is the run's own log, else that of rank 0. Without `attempt` it is the last one. A
    number is null where the lines before were not counted.
    """
    files = log_files(run)
    listed = [{"name": log.name, "attempt": log.attempt} for log in files]
    log = _chosen(run, files, file, attempt)
    if log is None:
        return {"file": None, "attempt": None, "lines": [], "cursor": "", "files": listed}
    with inside(run, *log.parts) as opened:
        if last and not after:
            lines, place = _last_lines(opened, last, search.casefold())
        else:
            begin = unpacked(after) if after else {"at": 0, "n": 0}
            begin |= {} if after else {"skip": offset}
            lines, place = _next_lines(opened, begin, limit, search.casefold())
    return {
        "file": log.name,
        "attempt": log.attempt,
        "lines": [{"n": n, "text": mask.text(text)} for n, text in lines],
        "cursor": packed(place),
        "files": listed,
    }


def _chosen(run: RunDir, files: list[LogFile], name: str, attempt: int | None) -> LogFile | None:
    if not name and not files:
        return None
    names = [name] if name else ["run", "rank0", files[0].name]
    for entry in names:
        for log in reversed(files):
            if log.name == entry and (attempt is None or log.attempt in (None, attempt)):
                return log
    raise NotFoundError(
        f"{run.run_id} has no log {name[:80]!r}"
        + ("" if attempt is None else f" of attempt {attempt}"),
        "one of: " + ", ".join(dict.fromkeys(log.name for log in files[:100]))
        if files
        else "it has written none yet",
    )


def _next_lines(
    file: BinaryIO, begin: dict[str, int], limit: int, wanted: str
) -> tuple[list[tuple[int | None, str]], dict[str, int]]:
    at, number = begin.get("at", 0), begin.get("n", -1)
    skip = begin.get("skip", 0)
    lines: list[tuple[int | None, str]] = []
    most, num_text = at + _BUDGET_BYTES, 0
    for end, line in _lines(file, at, most):
        at, number = end, number + 1 if number >= 0 else -1
        if number >= 0 and number <= skip:
            continue
        text = shown(line)
        if wanted and wanted not in text.casefold():
            continue
        lines.append((number if number >= 0 else None, text))
        num_text += len(text)
        if len(lines) >= limit or num_text > _MOST_TEXT:
            break
    left = {"skip": skip} if skip > number >= 0 else {}
    return lines, {"at": at, "n": number, **left} if number >= 0 else {"at": at}


def _last_lines(
    file: BinaryIO, last: int, wanted: str
) -> tuple[list[tuple[int | None, str]], dict[str, int]]:
    size = os.fstat(file.fileno()).st_size
    begin = max(0, size - _LAST_BYTES)
    number = _num_lines_before(file, begin) if begin <= _BUDGET_BYTES else None
    kept: deque[tuple[int | None, str]] = deque(maxlen=last)
    at, is_first = begin, begin > 0
    for end, line in _lines(file, begin, size):
        at = end
        number = None if number is None else number + 1
        text = shown(line)
        if not is_first and (not wanted or wanted in text.casefold()):
            kept.append((number, text))
        is_first = False  # what a piece of a line was left of
    return list(kept), {"at": at} if number is None else {"at": at, "n": number}


def _lines(file: BinaryIO, at: int, until: int) -> Iterator[tuple[int, bytes]]:
    with suppress(OSError):
        while at < until:
            piece = read_piece(file, at, _PIECE_BYTES)
            if piece.next_offset == at:
                return
            yield from piece.lines
            at = piece.next_offset


def _num_lines_before(file: BinaryIO, offset: int) -> int:
    file.seek(0)
    num, left = 0, offset
    while left > 0 and (data := file.read(min(left, _PIECE_BYTES))):
        num += data.count(b"\n")
        left -= len(data)
    return num


def shown(line: bytes) -> str:
    """Return a line as it is read: no colours, of a progress bar its last state."""
    text = _ESCAPES.sub("", line[: 4 * _LONGEST].decode("utf-8", errors="replace"))
    text = text.rstrip("\r").rpartition("\r")[2]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(line)} bytes)"
