"""The doctor's path from logs to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from doctor.logs.choose import suspects
from doctor.logs.ending import frozen_start
from doctor.logs.lagging import where_each_was, who_lags
from doctor.logs.reading import Log, find_logs
from doctor.logs.rules import EXCEPTION, RAISED, Rule, filled, load_rules
from doctor.logs.search import Found, Search
from doctor.logs.sightings import Sighting
from doctor.logs.verdict import Evidence, Verdict, written_verdict

_MOST_EVIDENCE = 4
_OF_CASCADE = 0.3  # the highest confidence for what only follows from something else


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


def verdict_of(ordered: Sequence[Sighting], results: Found) -> Verdict:
    """Return the verdict on the first suspect."""
    if not ordered:
        if results.num_logs == 1 and results.ends_at_begin is not None:  # of several, one may go on
            return frozen_start(results.ends_at_begin)
        return written_verdict("log.unknown", {})
    seen, rule = ordered[0], ordered[0].rule
    title, why, fix = (filled(text, seen.groups) for text in (rule.title, rule.why, rule.fix))
    confidence, rank = rule.confidence, _rank(seen, ordered, results)
    if rule.role == "cascade":
        lag = who_lags(ordered)
        confidence, rank = min(confidence, _OF_CASCADE), rank if lag.rank is None else lag.rank
        why = f"{why} The root cause is not in this log. {lag.told}".strip()
    if rule.tells_lines:
        places, show = where_each_was(results.sightings, rank)
        why, fix = f"{why} {places}".strip(), f"{show}   # {fix}" if show else fix
    if rule is RAISED:
        title = seen.exception
        fix = seen.own.show if seen.own else "look at the traceback above this line"
    return Verdict(
        cause=rule.cause,
        title=title,
        why=why,
        fix=fix,
        confidence=confidence,
        rank=rank,
        evidence=tuple(_evidence(seen, ordered)),
        role=rule.role,
    )


def _rank(first: Sighting, ordered: Sequence[Sighting], results: Found) -> int | None:
    """Return the line's own rank, or else that of torch elastic's summary or of the same cause."""
    if first.rank is not None and "local_rank: " not in first.text:
        return first.rank
    if results.first_failed_rank is not None:
        return results.first_failed_rank
    same = (seen.rank for seen in ordered if seen.rule.cause == first.rule.cause)
    return next((rank for rank in (first.rank, *same) if rank is not None), None)


def _evidence(first: Sighting, ordered: Sequence[Sighting]) -> list[Evidence]:
    """Return the line itself, the user's line that led to it, and what else shows the same cause.

    That is the line of another rule, then the same line of other ranks.
    """
    evidence = [Evidence(first.log.name, first.line, first.text)]
    if first.own is not None:
        evidence.append(Evidence(first.log.name, first.own.line, first.own.text))
    lines = [(line.file, line.line) for line in evidence]
    proofs = (seen for seen in ordered if seen.rule.cause == first.rule.cause)
    proof = next((seen for seen in proofs if seen.rule is not first.rule), None)
    is_root = first.rule.role == "root"
    if proof is not None and is_root and (proof.log.name, proof.line) not in lines:
        evidence.append(Evidence(proof.log.name, proof.line, proof.text))
    ranks = {first.rank}
    alike = () if first.rule.cause == EXCEPTION else ordered
    for other in (seen for seen in alike if seen.rule is first.rule):
        if other.rank not in (*ranks, None) and len(evidence) < _MOST_EVIDENCE:
            ranks.add(other.rank)
            evidence.append(Evidence(other.log.name, other.line, other.text))
    return evidence
