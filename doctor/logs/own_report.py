"""Airlock's own report in the output of a run: it quotes the doctor, and so is no evidence."""

from __future__ import annotations

import re

from doctor.logs.segments import Segments

# Its first line says which rank failed and how, as a launcher's summary does; the lines below it
# are indented.
_REPORT = re.compile(rb"^airlock: the run (?:failed|hung): [^\n]*\n((?:  [^\n]*(?:\n|$))*)", re.M)


def lines_of_own_report(segments: Segments) -> set[int]:
    """Return the starts of the lines below the first one of each report in a block."""
    starts = set[int]()
    for report in _REPORT.finditer(segments.data):
        start = report.start(1)
        while start < report.end(1):
            starts.add(start)
            start = segments.data.find(b"\n", start) + 1 or report.end(1)
    return starts
