"""The doctor's path from logs to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from doctor.logs.choose import suspects
from doctor.logs.frozen_start import frozen_start
from doctor.logs.lagging import where_each_was, who_lags
from doctor.logs.reading import Log, find_logs
from doctor.logs.rules import Rule, filled, load_rules
from doctor.logs.search import Found, Search
from doctor.logs.suspect import EXCEPTION, Suspect
from doctor.logs.verdict import Evidence, Verdict

_MOST_EVIDENCE = 4
_OF_CASCADE = 0.3  # the highest confidence for what only follows from something else

UNKNOWN = Verdict(
    cause="unknown",
    title="No known problem in this log",
    why="No rule matches a line of it, and it has no traceback.",
    fix="./airlock doctor FOLDER   # with the logs of all ranks and of the launcher",
    confidence=0.0,
)


def diagnose(names: Iterable[str], rules: Sequence[Rule] | None = None) -> Verdict:
    """Return the verdict on logs: files, folders, `-`.

    Raises UserError for logs that cannot be read, RuleError for an invalid rule.
    """
    results = search([log for name in names for log in find_logs(name)], rules)
    return verdict_of(suspects(results), results)


def search(logs: Sequence[Log], rules: Sequence[Rule] | None = None) -> Found:
    """Search `logs` for everything that rules know. Raises the same errors as `diagnose`."""
    searching = Search(load_rules() if rules is None else rules)
    for number, log in enumerate(logs):
        searching.read(log, number)
    return searching.found


def verdict_of(ordered: Sequence[Suspect], results: Found) -> Verdict:
    """Return the verdict on the first suspect."""
    if not ordered:
        if results.num_logs == 1 and results.ends_at_begin is not None:  # of several, one may go on
            return frozen_start(results.ends_at_begin)
        return UNKNOWN
    first = ordered[0]
    seen, rule = first.sighting, first.rule
    title, why, fix = (filled(text, seen.groups) for text in (rule.title, rule.why, rule.fix))
    confidence, rank = rule.confidence, _rank(first, ordered, results)
    if rule.role == "cascade":
        lag = who_lags([suspect.sighting for suspect in ordered])
        confidence, rank = min(confidence, _OF_CASCADE), rank if lag.rank is None else lag.rank
        why = f"{why} The root cause is not in this log. {lag.told}".strip()
    if rule.tells_lines:
        places, show = where_each_was(results.sightings, rank)
        why, fix = f"{why} {places}".strip(), f"{show}   # {fix}" if show else fix
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


def _rank(first: Suspect, ordered: Sequence[Suspect], results: Found) -> int | None:
    """Return the line's own rank, or else that of torch elastic's summary or of the same cause."""
    seen = first.sighting
    if seen.rank is not None and "local_rank: " not in seen.text:
        return seen.rank
    if results.first_failed_rank is not None:
        return results.first_failed_rank
    same = (suspect.sighting.rank for suspect in ordered if suspect.rule.cause == first.rule.cause)
    return next((rank for rank in (seen.rank, *same) if rank is not None), None)


def _evidence(first: Suspect, ordered: Sequence[Suspect]) -> list[Evidence]:
    """Return the line itself, the user's line that led to it, and what else shows the same cause.

    That is the line of another rule, then the same line of other ranks.
    """
    seen = first.sighting
    evidence = [Evidence(seen.log.name, seen.line, seen.text)]
    if seen.own is not None:
        evidence.append(Evidence(seen.log.name, seen.own.line, seen.own.text))
    proofs = (suspect.sighting for suspect in ordered if suspect.rule.cause == first.rule.cause)
    lines = [(line.file, line.line) for line in evidence]
    proof = next((suspect for suspect in proofs if suspect.rule is not first.rule), None)
    if (
        proof is not None
        and first.rule.role == "root"
        and (proof.log.name, proof.line) not in lines
    ):
        evidence.append(Evidence(proof.log.name, proof.line, proof.text))
    ranks = {seen.rank}
    alike = () if first.rule.cause == EXCEPTION else ordered
    for other in (suspect.sighting for suspect in alike if suspect.rule is first.rule):
        if other.rank not in (*ranks, None) and len(evidence) < _MOST_EVIDENCE:
            ranks.add(other.rank)
            evidence.append(Evidence(other.log.name, other.line, other.text))
    return evidence
