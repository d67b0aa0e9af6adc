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


def suspects(results: Found) -> list[Suspect]:
    """Return everything that may be the cause, the likeliest first.

    Ordered by role, then by which cause beats which, with a launcher's summary last, then by time,
    then by confidence.
    """
    named = [
        Suspect(sighting, sighting.rule)
        for sighting in results.sightings
        if sighting.rule is not None
        and _holds(sighting.rule, results)
        and (not sighting.rule.at_end or results.ends_with_it(sighting.log))
    ]
    raised = [
        Suspect(sighting, _RAISED)
        for sighting in results.sightings
        if sighting.rule is None and not _is_explained(sighting, named)
    ]
    named = [
        suspect
        for suspect in named
        if suspect.rule.cause != EXCEPTION or not _is_told(suspect, named)
    ]
    everything = [suspect for suspect in (*named, *raised) if not _is_survived(suspect, results)]
    unbeaten = _unbeaten(without_got_over(everything))
    role = min((ROLES.index(suspect.rule.role) for suspect in unbeaten), default=0)
    timed = _has_times([suspect for suspect in unbeaten if suspect.rule.role == ROLES[role]])
    return sorted(unbeaten, key=lambda suspect: _order(suspect, timed=timed))


def _order(suspect: Suspect, *, timed: bool) -> tuple[object, ...]:
    seen = suspect.sighting
    seconds = seen.time.seconds if timed and seen.time is not None else 0.0
    role, is_summary = ROLES.index(suspect.rule.role), suspect.rule.cause in _OF_LAUNCHER
    return (role, is_summary, seconds, seen.position, -suspect.rule.confidence, suspect.rule.cause)


def _holds(rule: Rule, results: Found) -> bool:
    return all(pattern in results.seen for pattern in rule.needs) and not any(
        pattern in results.seen for pattern in rule.unless
    )


def _is_explained(raised: Sighting, named: Iterable[Suspect]) -> bool:
    """Return whether a rule matches the exception, on its first or a later line of its message."""
    return any(
        suspect.sighting.log == raised.log
        and raised.line <= suspect.sighting.line <= raised.last_line
        and (suspect.sighting.line == raised.line or suspect.rule.cause not in _OF_OTHERS)
        for suspect in named
    )


def _is_told(raised: Suspect, named: Iterable[Suspect]) -> bool:
    """Return whether another rule also matches the event of an exception."""
    return any(
        (suspect.sighting.log, suspect.sighting.line) == (raised.sighting.log, raised.sighting.line)
        and suspect.rule.cause != EXCEPTION
        for suspect in named
    )


def _is_survived(suspect: Suspect, results: Found) -> bool:
    """Return whether the log carries on regardless: the error was caught, or the work retried."""
    seen = suspect.sighting
    after = results.num_signs[seen.log.name] - seen.num_signs
    return results.num_progress[seen.log.name] >= _SURVIVED or (
        seen.is_warning and after >= _WARNED
    )


def _unbeaten(everything: Sequence[Suspect]) -> list[Suspect]:
    """Drop those that another one of the same or a stronger role explains."""
    beaten: dict[str, int] = {}  # cause -> the strongest role that beats it
    for suspect in everything:
        for cause in suspect.rule.beats:
            role = ROLES.index(suspect.rule.role)
            beaten[cause] = min(role, beaten.get(cause, role))
    return [
        suspect
        for suspect in everything
        if beaten.get(suspect.rule.cause, len(ROLES)) > ROLES.index(suspect.rule.role)
    ]


def _has_times(everything: Sequence[Suspect]) -> bool:
    """Return whether several logs can be ordered by time: all stamps exist and are of one kind."""
    if len({suspect.sighting.log for suspect in everything}) < 2:  # noqa: PLR2004 - in one, lines decide
        return False
    times = [suspect.sighting.time for suspect in everything]
    return all(times) and len({time.kind for time in times if time is not None}) == 1
