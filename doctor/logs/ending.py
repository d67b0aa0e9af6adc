"""How a log ends: whether a line of it is among the last, so that nothing came of it."""

from __future__ import annotations

import re
from itertools import islice

from doctor.logs.segments import Segment, Segments

MOST_AFTER = 3  # further lines, below which a log still counts as ending with a line
_MOST_FRAMES = 200
_PART_OF_IT = re.compile(r"^(?:frame #\d+|Exception raised from |\*+$|$)")  # a C++ stack, rules


def num_lines_after(segments: Segments, line: Segment | None) -> int:
    """Count lines below `line`, or all if it is None, without stacks; at most MOST_AFTER + 1."""
    start = segments.at(0) if line is None else line
    below = [start] if line is None else []
    below += segments.after(start, _MOST_FRAMES)
    counted = (segment for segment in below if not _PART_OF_IT.match(segment.stripped.text.strip()))
    return sum(1 for _ in islice(counted, MOST_AFTER + 1))
