"""Lines that a rank got over: it went on after them, until another exception ended it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from doctor.logs.rules import EXCEPTION
from doctor.logs.sightings import Sighting

_NEAR = 10  # lines above a traceback in which a library logs why it is about to raise

# A mistake in the code that raised it. Others are often raised on purpose, for what a line above
# them says.
_MISTAKE = re.compile(
    r"^(?:Key|Attribute|Name|UnboundLocal|Type|Index|Lookup|ZeroDivision|NotImplemented)Error\b"
)

Place = tuple[str, int | None]  # a log, and the rank whose line it is


def without_got_over(everything: Sequence[Sighting]) -> list[Sighting]:
    """Drop what a rank printed before the exception that ended it, unless that may explain it.

    The exception is the last one in the rank's log that was raised below the user's own code. It
    needs no explanation but its traceback if a rule calls it a root, or if no rule knows it.
    """
    ends: dict[Place, list[Sighting]] = {}  # several rules may match the exception
    raised = [
        (suspect.begin, suspect)
        for suspect in everything
        if suspect.begin is not None and suspect.own and suspect.rule.role != "cascade"
    ]
    for begin, suspect in sorted(raised, key=lambda pair: pair[0].position):
        known = ends.setdefault(_place(suspect), [])
        if known and known[0].begin != begin:
            known.clear()
        known.append(suspect)
    return [
        suspect
        for suspect in everything
        if not _is_got_over(suspect, ends.get(_place(suspect), []))
    ]


def _is_got_over(suspect: Sighting, end: Sequence[Sighting]) -> bool:
    begin = end[0].begin if end else None
    if begin is None or suspect.position >= begin.position or suspect.rule.role == "cascade":
        return False
    if any(
        suspect.rule.cause == other.rule.cause or other.rule.cause in suspect.rule.beats
        for other in end
    ):
        return False
    is_unknown = all(other.rule.cause == EXCEPTION for other in end)
    if is_unknown and _MISTAKE.match(end[0].exception):
        return True
    is_enough = is_unknown or any(other.rule.role == "root" for other in end)
    return is_enough and begin.line - suspect.line > _NEAR


def _place(seen: Sighting) -> Place:
    return seen.log.name, seen.rank
