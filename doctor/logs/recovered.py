"""Lines that a rank got over: it went on after them, until another exception ended it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from doctor.logs.sightings import Begin, Sighting
from doctor.logs.suspect import EXCEPTION, Suspect

_NEAR = 10  # lines above a traceback in which a library logs why it is about to raise

# A mistake in the code that raised it. Others are often raised on purpose, for what a line above
# them says.
_MISTAKE = re.compile(
    r"^(?:Key|Attribute|Name|UnboundLocal|Type|Index|Lookup|ZeroDivision|NotImplemented)Error\b"
)

Place = tuple[str, int | None]  # a log, and the rank whose line it is


def without_got_over(everything: Sequence[Suspect]) -> list[Suspect]:
    """Drop what a rank printed before the exception that ended it, unless that may explain it.

    The exception is the last one in the rank's log that was raised below the user's own code. It
    needs no explanation but its traceback if a rule calls it a root, or if no rule knows it.
    """
    ends: dict[Place, list[Suspect]] = {}
    for suspect in everything:
        if (
            suspect.sighting.begin is not None
            and suspect.sighting.own
            and suspect.rule.role != "cascade"
        ):
            _keep_last(
                ends.setdefault(_place(suspect.sighting), []), suspect, suspect.sighting.begin
            )
    return [
        suspect
        for suspect in everything
        if not _is_got_over(suspect, ends.get(_place(suspect.sighting), []))
    ]


def _keep_last(known: list[Suspect], suspect: Suspect, begin: Begin) -> None:
    """Keep in `known` the suspects of the last exception only; several rules may match it."""
    last = known[0].sighting.begin if known else None
    if last is not None and begin.position < last.position:
        return
    if last is not None and begin.position > last.position:
        known.clear()
    known.append(suspect)


def _is_got_over(suspect: Suspect, end: Sequence[Suspect]) -> bool:
    begin = end[0].sighting.begin if end else None
    if (
        begin is None
        or suspect.sighting.position >= begin.position
        or suspect.rule.role == "cascade"
    ):
        return False
    if any(
        suspect.rule.cause == other.rule.cause or other.rule.cause in suspect.rule.beats
        for other in end
    ):
        return False
    is_unknown = all(other.rule.cause == EXCEPTION for other in end)
    if is_unknown and _MISTAKE.match(end[0].sighting.exception):
        return True
    is_enough = is_unknown or any(other.rule.role == "root" for other in end)
    return is_enough and begin.line - suspect.sighting.line > _NEAR


def _place(seen: Sighting) -> Place:
    return seen.log.name, seen.rank
