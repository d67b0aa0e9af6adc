"""The choice of the root cause among everything that was sighted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from doctor.logs.rules import EXCEPTION, RAISED, ROLES, Rule
from doctor.logs.search import Found
from doctor.logs.sightings import Sighting

_SURVIVED = 10  # signs of progress that a log shows after its last trouble
_WARNED = 3  # the same after a mere logger warning, even if other trouble follows

# A launcher's lines, which say that a rank has ended but not why.
_OF_LAUNCHER = frozenset({"rank-failed", "rank-terminated-by-launcher"})
# How processes end, and how other ranks notice. Such lines often stand right below an exception, as
# if they were part of its message.
_OF_OTHERS = _OF_LAUNCHER | {
    "killed-by-sigkill",
    "terminated-by-sigterm",
    "aborted",
    "segmentation-fault",
    "bus-error",
    "nccl-watchdog-timeout",
    "nccl-watchdog-stuck",
    "worker-pool-broken",
}
_NEAR = 10  # lines above a traceback in which a library logs why it is about to raise

# A mistake in the code that raised it. Others are often raised on purpose, for what a line above
# them says.
_MISTAKE = re.compile(
    r"^(?:Key|Attribute|Name|UnboundLocal|Type|Index|Lookup|ZeroDivision|NotImplemented)Error\b"
)

Place = tuple[str, int | None]  # a log, and the rank whose line it is


def suspects(results: Found) -> list[Sighting]:
    """Return everything that may be the cause, the likeliest first.

    Ordered by role, then by which cause beats which, with a launcher's summary last, then by time,
    then by confidence.
    """
    named = [
        seen
        for seen in results.sightings
        if seen.rule is not RAISED
        and _holds(seen.rule, results)
        and (not seen.rule.at_end or results.ends_with_it(seen.log))
    ]
    raised = [
        seen for seen in results.sightings if seen.rule is RAISED and not _is_explained(seen, named)
    ]
    named = [seen for seen in named if seen.rule.cause != EXCEPTION or not _is_told(seen, named)]
    everything = [seen for seen in (*named, *raised) if not _is_survived(seen, results)]
    unbeaten = _unbeaten(without_got_over(everything))
    role = min((ROLES.index(seen.rule.role) for seen in unbeaten), default=0)
    timed = _has_times([seen for seen in unbeaten if seen.rule.role == ROLES[role]])
    return sorted(unbeaten, key=lambda seen: _order(seen, timed=timed))


def _order(seen: Sighting, *, timed: bool) -> tuple[object, ...]:
    seconds = seen.time.seconds if timed and seen.time is not None else 0.0
    role, is_summary = ROLES.index(seen.rule.role), seen.rule.cause in _OF_LAUNCHER
    return (role, is_summary, seconds, seen.position, -seen.rule.confidence, seen.rule.cause)


def _holds(rule: Rule, results: Found) -> bool:
    return all(pattern in results.seen for pattern in rule.needs) and not any(
        pattern in results.seen for pattern in rule.unless
    )


def _is_explained(raised: Sighting, named: Iterable[Sighting]) -> bool:
    """Return whether a rule matches the exception, on its first or a later line of its message."""
    return any(
        seen.log == raised.log
        and raised.line <= seen.line <= raised.last_line
        and (seen.line == raised.line or seen.rule.cause not in _OF_OTHERS)
        for seen in named
    )


def _is_told(raised: Sighting, named: Iterable[Sighting]) -> bool:
    """Return whether another rule also matches the event of an exception."""
    return any(
        (seen.log, seen.line) == (raised.log, raised.line) and seen.rule.cause != EXCEPTION
        for seen in named
    )


def _is_survived(seen: Sighting, results: Found) -> bool:
    """Return whether the log carries on regardless: the error was caught, or the work retried."""
    after = results.num_signs[seen.log.name] - seen.num_signs
    return results.num_progress[seen.log.name] >= _SURVIVED or (
        seen.is_warning and after >= _WARNED
    )


def _unbeaten(everything: Sequence[Sighting]) -> list[Sighting]:
    """Drop those that another one of the same or a stronger role explains."""
    beaten: dict[str, int] = {}  # cause -> the strongest role that beats it
    for seen in everything:
        for cause in seen.rule.beats:
            role = ROLES.index(seen.rule.role)
            beaten[cause] = min(role, beaten.get(cause, role))
    return [
        seen
        for seen in everything
        if beaten.get(seen.rule.cause, len(ROLES)) > ROLES.index(seen.rule.role)
    ]


def _has_times(everything: Sequence[Sighting]) -> bool:
    """Return whether several logs can be ordered by time: all stamps exist and are of one kind."""
    if len({seen.log for seen in everything}) < 2:  # noqa: PLR2004 - in one, lines decide
        return False
    times = [seen.time for seen in everything]
    return all(times) and len({time.kind for time in times if time is not None}) == 1


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
