"""The choice of the root cause among everything that was sighted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from doctor.logs.recovered import without_got_over
from doctor.logs.rules import ROLES, Rule
from doctor.logs.search import Found
from doctor.logs.sightings import Sighting
from doctor.logs.suspect import EXCEPTION, Suspect

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

_RAISED = Rule(
    cause=EXCEPTION,
    title="",
    role="symptom",
    match=(),
    confidence=0.5,
    why="The program raised this exception, and no rule knows it: what it says is what there is.",
)


def suspects(found: Found) -> list[Suspect]:
    """Return everything that may be the cause, the likeliest first.

    Ordered by role, then by which cause beats which, with a launcher's summary last, then by time,
    then by confidence.
    """
    named = [
        Suspect(one, one.rule)
        for one in found.sightings
        if one.rule is not None
        and _holds(one.rule, found)
        and (not one.rule.at_end or found.ends_with_it(one.log))
    ]
    raised = [
        Suspect(one, _RAISED)
        for one in found.sightings
        if one.rule is None and not _is_explained(one, named)
    ]
    named = [one for one in named if one.rule.cause != EXCEPTION or not _is_told(one, named)]
    everything = [one for one in (*named, *raised) if not _is_survived(one, found)]
    unbeaten = _unbeaten(without_got_over(everything))
    role = min((ROLES.index(one.rule.role) for one in unbeaten), default=0)
    timed = _has_times([one for one in unbeaten if one.rule.role == ROLES[role]])
    return sorted(unbeaten, key=lambda one: _order(one, timed=timed))


def _order(one: Suspect, *, timed: bool) -> tuple[object, ...]:
    seen = one.sighting
    seconds = seen.time.seconds if timed and seen.time is not None else 0.0
    role, is_summary = ROLES.index(one.rule.role), one.rule.cause in _OF_LAUNCHER
    return (role, is_summary, seconds, seen.position, -one.rule.confidence, one.rule.cause)


def _holds(rule: Rule, found: Found) -> bool:
    return all(one in found.seen for one in rule.needs) and not any(
        one in found.seen for one in rule.unless
    )


def _is_explained(raised: Sighting, named: Iterable[Suspect]) -> bool:
    """Return whether a rule matches the exception, on its first or a later line of its message."""
    return any(
        one.sighting.log == raised.log
        and raised.line <= one.sighting.line <= raised.last_line
        and (one.sighting.line == raised.line or one.rule.cause not in _OF_OTHERS)
        for one in named
    )


def _is_told(raised: Suspect, named: Iterable[Suspect]) -> bool:
    """Return whether another rule also matches the event of an exception."""
    return any(
        (one.sighting.log, one.sighting.line) == (raised.sighting.log, raised.sighting.line)
        and one.rule.cause != EXCEPTION
        for one in named
    )


def _is_survived(one: Suspect, found: Found) -> bool:
    """Return whether the log carries on regardless: the error was caught, or the work retried."""
    seen = one.sighting
    after = found.num_signs[seen.log.name] - seen.num_signs
    return found.num_progress[seen.log.name] >= _SURVIVED or (seen.is_warning and after >= _WARNED)


def _unbeaten(everything: Sequence[Suspect]) -> list[Suspect]:
    """Drop those that another one of the same or a stronger role explains."""
    beaten: dict[str, int] = {}  # cause -> the strongest role that beats it
    for one in everything:
        for cause in one.rule.beats:
            role = ROLES.index(one.rule.role)
            beaten[cause] = min(role, beaten.get(cause, role))
    return [
        one
        for one in everything
        if beaten.get(one.rule.cause, len(ROLES)) > ROLES.index(one.rule.role)
    ]


def _has_times(everything: Sequence[Suspect]) -> bool:
    """Return whether several logs can be ordered by time: all stamps exist and are of one kind."""
    if len({one.sighting.log for one in everything}) < 2:  # noqa: PLR2004 - in one, lines decide
        return False
    times = [one.sighting.time for one in everything]
    return all(times) and len({time.kind for time in times if time is not None}) == 1
