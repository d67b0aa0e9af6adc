"""From logs to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diagnostics.doctor.logs.choose import EXCEPTION, Suspect, suspects
from diagnostics.doctor.logs.lagging import who_lags
from diagnostics.doctor.logs.reading import Log, find_logs
from diagnostics.doctor.logs.rules import Rule, filled, load_rules
from diagnostics.doctor.logs.search import Found, Search
from diagnostics.doctor.logs.verdict import Evidence, Verdict

_MOST_EVIDENCE = 4
_OF_CASCADE = 0.3  # the most that is said of what only follows from something else

UNKNOWN = Verdict(
    cause="unknown",
    title="Nothing known to be wrong stands in this log",
    why="No rule knows a line of it, and no traceback stands in it.",
    fix="airlock doctor FOLDER   # with the logs of all ranks and of the launcher",
    confidence=0.0,
)


def diagnose(names: Iterable[str], rules: Sequence[Rule] | None = None) -> Verdict:
    """The verdict on logs: files, folders, `-`.

    Raises UserError for what cannot be read, RuleError for a rule that cannot be used.
    """
    found = search([log for name in names for log in find_logs(name)], rules)
    return verdict_of(suspects(found), found)


def search(logs: Sequence[Log], rules: Sequence[Rule] | None = None) -> Found:
    """All that is known of `logs`. Raises as `diagnose`."""
    searching = Search(load_rules() if rules is None else rules)
    for number, log in enumerate(logs):
        searching.read(log, number)
    return searching.found


def verdict_of(ordered: Sequence[Suspect], found: Found) -> Verdict:
    """The verdict on the first of them."""
    if not ordered:
        return UNKNOWN
    first = ordered[0]
    seen, rule = first.sighting, first.rule
    title, why, fix = (filled(text, seen.groups) for text in (rule.title, rule.why, rule.fix))
    confidence, rank = rule.confidence, _rank(first, ordered, found)
    if rule.role == "cascade":
        lag = who_lags([one.sighting for one in ordered])
        confidence, rank = min(confidence, _OF_CASCADE), rank if lag.rank is None else lag.rank
        why = f"{why} The root cause is not in this log. {lag.told}".strip()
    if seen.rule is None:
        title = seen.exception
        fix = seen.own.show if seen.own else "look at the traceback above this line"
    return Verdict(
        cause=rule.cause,
        title=title,
        why=why,
        fix=fix,
        confidence=confidence,
        rank=rank,
        evidence=tuple(_evidence(first, ordered)),
        role=rule.role,
    )


def _rank(first: Suspect, ordered: Sequence[Suspect], found: Found) -> int | None:
    """The line's own; else what another of the same cause, or torch elastic's summary, tells."""
    seen = first.sighting
    if seen.rank is not None and "local_rank: " not in seen.text:
        return seen.rank
    if found.first_failed_rank is not None:
        return found.first_failed_rank
    same = (one.sighting.rank for one in ordered if one.rule.cause == first.rule.cause)
    return next((rank for rank in (seen.rank, *same) if rank is not None), None)


def _evidence(first: Suspect, ordered: Sequence[Suspect]) -> list[Evidence]:
    """The line itself, the user's line that led to it, then the same of other ranks."""
    seen = first.sighting
    found = [Evidence(seen.log.name, seen.line, seen.text)]
    if seen.own is not None:
        found.append(Evidence(seen.log.name, seen.own.line, seen.own.text))
    ranks = {seen.rank}
    alike = () if first.rule.cause == EXCEPTION else ordered
    for other in (one.sighting for one in alike if one.rule is first.rule):
        if other.rank not in (*ranks, None) and len(found) < _MOST_EVIDENCE:
            ranks.add(other.rank)
            found.append(Evidence(other.log.name, other.line, other.text))
    return found
