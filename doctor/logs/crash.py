"""The user's call in a process that crashed, from the stacks that faulthandler left in its log."""

from __future__ import annotations

import re

from doctor.logs.segments import Segment, Segments
from doctor.logs.tracebacks import Frame, is_own

_CRASH = b"fatal python error: "
_FAR_BYTES = 16 << 10  # below the line that says why: a C++ stack may stand between
_MOST_LINES = 2000  # of all stacks

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<where>.+)$')


def call_at_crash(segments: Segments, line: Segment) -> Frame | None:
    """Return the innermost call in the user's own code when the process crashed at or below `line`.

    It is that of the thread that crashed, or else of the main thread, which comes last. None if the
    log has no stacks there, or none of them has a call of the user's.
    """
    position = segments.lower.find(_CRASH, line.start, line.end + _FAR_BYTES)
    if position < 0:
        return None
    header = segments.at(segments.start_at(position))
    threads: list[tuple[bool, list[Frame]]] = []
    for segment in segments.after(header, _MOST_LINES):
        if segment.stripped.rank != header.stripped.rank:
            continue
        text = segment.stripped.text
        if thread := _THREAD.match(text):
            threads.append((thread[1] == "Current thread", []))
        elif threads and (frame_match := _FRAME.match(text)):
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
