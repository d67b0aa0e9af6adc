"""How a log ends: what its last lines are, and whether it ends where the training begins."""

from __future__ import annotations

import re
from itertools import islice

from doctor.logs.segments import Segment, Segments
from doctor.logs.verdict import Evidence, Verdict, written_verdict

MOST_AFTER = 3  # further lines, below which a log still counts as ending with a line
_MOST_FRAMES = 200
_PART_OF_IT = re.compile(r"^(?:frame #\d+|Exception raised from |\*+$|$)")  # a C++ stack, rules
_MOST_LINES = 40
_BEGINS = re.compile(
    r"\b(?:start(?:ing|ed)?|begin(?:ning)?) (?:the )?(?:\w+ )?(?:fine-?tuning|training)\b"
    r"(?: (?:loop|run|process|now))?[ .…!:-]*$|\*{3,} ?running training ?\*{3,}|"
    r"^training [\d,]+ of [\d,]+ parameters, ",
    re.IGNORECASE,
)
# What may stand below and is no progress: a list of settings, a bar at its beginning, a rule.
_NO_PROGRESS = re.compile(
    r"^\W*$|(?:^|>> )\W*(?:num(?:ber)?|total|instantaneous|gradient accumulation)\b[^=:]*[=:]|"
    r"(?:^|\s)0%\|.*\b0/\d+ \[",
    re.IGNORECASE,
)
_LIST_FOLLOWS = "running training"  # of transformers: a log that ends with this line was cut off


def num_lines_after(segments: Segments, line: Segment | None) -> int:
    """Count lines below `line`, or all if it is None, without stacks; at most MOST_AFTER + 1."""
    start = segments.at(0) if line is None else line
    below = [start] if line is None else []
    below += segments.after(start, _MOST_FRAMES)
    counted = (segment for segment in below if not _PART_OF_IT.match(segment.stripped.text.strip()))
    return sum(1 for _ in islice(counted, MOST_AFTER + 1))


def last_begin(segments: Segments) -> Segment | None:
    """Return the line with which the training begins, if nothing that tells of progress follows."""
    end = Segment(len(segments.data), len(segments.data), "")
    for number, segment in enumerate(segments.before(end, _MOST_LINES)):
        text = segment.stripped.text.strip()
        if _BEGINS.search(text):
            is_cut = number == 0 and _LIST_FOLLOWS in text.lower()
            return None if is_cut else segment
        if not _NO_PROGRESS.search(text):
            return None
    return None


def frozen_start(at: Evidence) -> Verdict:
    """Return the verdict on a log that ends where the training begins, in line `at`."""
    return written_verdict("log.frozen_start", {}, evidence=(at,))
