"""A sighting: a revealing line, with its place, rank, time, and the user's call that led to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from doctor.logs.prefix import Time
from doctor.logs.reading import Log
from doctor.logs.rules import Rule
from doctor.logs.segments import Segment, Segments
from doctor.logs.tracebacks import Frame, Traceback, is_own, show_code

Groups = dict[str, str | None]

_WARNING = re.compile(r"\bWARN(?:ING)?\b|\[W\d* |^W\d{4} ")  # levels; glog's is a letter
_LINES_BACK = 40  # that are searched for a time stamp
_LONGEST_TEXT = 400  # characters of a line that are quoted

# In torch elastic's summary the rank is on a line of its own, above the exit code.
_SUMMARY_RANK = re.compile(r"^\s*rank\s*:\s*(\d+)|failed \(exitcode: -?\d+\) local_rank: (\d+)")
_SUMMARY_LINE = re.compile(r"^\s*(?:exitcode|error_file|traceback)\s*:|failed \(exitcode: ")
_FIRST_FAILURE = b"root cause (first observed failure)"
# Not by SIGHUP, SIGINT or SIGTERM: those are sent to all ranks from outside.
_FIRST_TO_FAIL = re.compile(rb"failed \(exitcode: (?!-(?:1|2|15)\))-?\d+\) local_rank: (\d+)")

# The stacks that faulthandler leaves in a log when a process crashes.
_CRASH = b"fatal python error: "
_FAR_BYTES = 16 << 10  # below the line that says why: a C++ stack may stand between
_MOST_OF_STACKS = 2000  # of all stacks

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_CRASH_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<where>.+)$')


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A call in the user's own code: the log's line, its text, and the code that it names."""

    line: int
    text: str
    code: str
    show: str  # a command that shows that code


@dataclass(frozen=True, slots=True)
class Begin:
    """The first line of a traceback: its position, like that of a sighting, and its number."""

    position: tuple[int, int, int]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A line that `rule` matches, or an exception that none does; `own`: the user's call above."""

    rule: Rule
    log: Log
    line: int
    text: str
    position: tuple[int, int, int]  # log, block, byte
    rank: int | None = None
    time: Time | None = None
    groups: Groups = field(default_factory=dict)
    own: OwnCall | None = None
    exception: str = ""  # the line that names it, without prefixes
    last_line: int = 0  # where the message of an exception ends
    is_warning: bool = False  # a logger's, not an exception's
    num_signs: int = 0  # of progress, before this line in its log
    begin: Begin | None = None  # of the traceback that it is in, or of what that is chained to


def sighting_of(
    *,
    log: Log,
    place: tuple[int, int],
    segments: Segments,
    segment: Segment,
    rule: Rule,
    groups: Groups,
    stack: Traceback | None,
) -> Sighting:
    """Create the sighting of `segment`; `stack` is the traceback it belongs to, if any."""
    rank = segment.stripped.rank
    if groups.get("rank"):
        rank = int(groups["rank"] or 0)
    elif rank is None:
        stack_rank = stack.rank_told if stack is not None else None
        rank = _summary_rank(segments, segment) if stack_rank is None else stack_rank
    end = stack.rest[-1] if stack is not None and stack.rest else segment
    return Sighting(
        rule=rule,
        log=log,
        line=segments.line_of(segment),
        text=_shortened(segment.raw),
        position=(*place, segment.start),
        rank=log.rank if rank is None else rank,
        time=_time(segments, segment),
        groups=groups,
        own=_own_call(segments, segment, stack),
        exception=_shortened(segment.stripped.text),
        last_line=segments.line_of(end),
        is_warning=stack is None and _WARNING.search(segment.raw) is not None,
        begin=_begin(place, segments, stack),
    )


def _begin(place: tuple[int, int], segments: Segments, stack: Traceback | None) -> Begin | None:
    if stack is None:
        return None
    return Begin((*place, stack.begin.start), segments.line_of(stack.begin))


def _own_call(segments: Segments, segment: Segment, stack: Traceback | None) -> OwnCall | None:
    frame = _call_at_crash(segments, segment) if stack is None else stack.own_frame
    if frame is None:
        return None
    code = f"{frame.file}, line {frame.line}" + (f", in {frame.where}" if frame.where else "")
    return OwnCall(
        segments.line_of(frame.segment),
        _shortened(frame.segment.raw),
        code,
        show_code(frame.file, frame.line),
    )


def first_failed_rank(segments: Segments) -> int | None:
    """Return the rank that torch elastic reports as the first to fail, in or before its summary."""
    position = segments.lower.find(_FIRST_FAILURE)
    if position < 0:  # on one node the local rank is the global one
        match = _FIRST_TO_FAIL.search(segments.lower)
        return int(match[1]) if match else None
    here = segments.at(segments.start_at(position))
    ranks = (_SUMMARY_RANK.search(nearby.stripped.text) for nearby in segments.after(here, 6))
    return next((int(rank[1] or rank[2]) for rank in ranks if rank), None)


def _summary_rank(segments: Segments, segment: Segment) -> int | None:
    """Return the rank that such a line of torch elastic's summary belongs to."""
    if not _SUMMARY_LINE.search(segment.stripped.text):
        return None
    for nearby in (segment, *segments.before(segment, 5)):
        if match := _SUMMARY_RANK.search(nearby.stripped.text):
            return int(match[1] or match[2])
    return None


def _time(segments: Segments, segment: Segment) -> Time | None:
    """Return the time of the line: that of its own stamp, or of the nearest one above."""
    if segment.stripped.time is not None:
        return segment.stripped.time
    stamps = (nearby.stripped.time for nearby in segments.before(segment, _LINES_BACK))
    return next((stamp for stamp in stamps if stamp is not None), None)


def _shortened(text: str) -> str:
    """Shorten a line for quoting."""
    text = text.strip()
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def _call_at_crash(segments: Segments, line: Segment) -> Frame | None:
    """Return the innermost call in the user's own code when the process crashed at or below `line`.

    It is that of the thread that crashed, or else of the main thread, which comes last. None if the
    log has no stacks there, or none of them has a call of the user's.
    """
    position = segments.lower.find(_CRASH, line.start, line.end + _FAR_BYTES)
    if position < 0:
        return None
    header = segments.at(segments.start_at(position))
    threads: list[tuple[bool, list[Frame]]] = []
    for segment in segments.after(header, _MOST_OF_STACKS):
        if segment.stripped.rank != header.stripped.rank:
            continue
        text = segment.stripped.text
        if thread := _THREAD.match(text):
            threads.append((thread[1] == "Current thread", []))
        elif threads and (frame_match := _CRASH_FRAME.match(text)):
            frame = Frame(
                segment, frame_match["file"], int(frame_match["line"]), frame_match["where"]
            )
            threads[-1][1].append(frame)
        elif not text.startswith(("  ", "Current thread", "Thread")):
            break
    threads.reverse()
    threads.sort(key=lambda thread: not thread[0])
    calls = (frame for _, frames in threads for frame in frames if is_own(frame.file))
    return next(calls, None)
