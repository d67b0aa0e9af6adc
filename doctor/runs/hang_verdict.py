"""The verdict on a run that hung, from what its launcher recorded about the ranks (incidents/)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from doctor.logs.choose import suspects
from doctor.logs.diagnosis import search, verdict_of
from doctor.logs.reading import Log
from doctor.logs.verdict import Verdict
from doctor.runs.hang_absent import has_left, not_joined
from doctor.runs.hang_apart import apart
from doctor.runs.hang_collectives import mismatch, no_partner
from doctor.runs.hang_seen import HungRanks
from rundir.files.reading import json_object
from rundir.paths import shown
from rundir.units import clock_text

_DEAF_S = 3.0  # within which a rank that can run Python code has shown a sign of life


def of_hang(folder: Path) -> Verdict | None:
    """Return the verdict on the incident in `folder`; None if it holds no record of a hang.

    The most reliable evidence comes first: what the kernel says of a rank, then whether Python code
    can run in it, then who is not there, and only at the end where those are who are.
    """
    about = json_object(folder / "hang.json")
    if not about:
        return None
    seen = HungRanks(folder, about)
    deciders = (
        _stopped,
        _in_kernel,
        has_left,
        _holds_the_gil,
        _known,
        not_joined,
        apart,
        no_partner,
        mismatch,
        _is_behind,
        _alone,
        _together,
    )
    for decide in deciders:
        if verdict := decide(seen):
            return verdict
    return seen.verdict("silent")


def _stopped(seen: HungRanks) -> Verdict | None:
    """Judge a rank that a signal has stopped, or a debugger."""
    for rank, row in seen.ranks.items():
        if row["state"] in ("T", "t"):
            by = (
                "was stopped (SIGSTOP)"
                if row["state"] == "T"
                else "is held by a debugger or tracer"
            )
            at = row.get("at") or {}
            place = f", at {at['file']}:{at['line']}" if at.get("file") else ""
            return seen.verdict("stopped", ranks=(rank,), by=by, place=place, row=row)
    return None


def _in_kernel(seen: HungRanks) -> Verdict | None:
    """Judge a rank in uninterruptible sleep."""
    for rank, row in seen.ranks.items():
        if row["state"] == "D" and row["stays"]:
            place = f" in {row['waits_in']}" if row["waits_in"] else ""
            return seen.verdict("in_kernel", ranks=(rank,), place=place, row=row)
    return None


def _holds_the_gil(seen: HungRanks) -> Verdict | None:
    """Judge a rank in which no Python code can run, although it is there."""
    there = [rank for rank, row in seen.ranks.items() if row["state"] not in ("", "Z")]
    deaf = [rank for rank in there if (seen.ranks[rank]["alive_s"] or 0.0) > _DEAF_S]
    if not deaf or len(deaf) == len(seen.ranks) > 1:
        return None
    silent = clock_text(seen.ranks[deaf[0]]["alive_s"])
    return seen.verdict("holds_the_gil", ranks=(deaf[0],), silent=silent)


def _known(seen: HungRanks) -> Verdict | None:
    """Apply the doctor's rules to the call that a rank is in, as to a line of a log."""
    stacks = {rank: stack for rank, stack in seen.stacks.items() if stack.log.suffix != ".json"}
    logs = [Log(shown(stack.log), stack.log, rank) for rank, stack in stacks.items()]
    results = search(logs)
    ordered = suspects(results)
    if not ordered or ordered[0].rule.role != "root":
        return None
    known = verdict_of(ordered, results)
    ranks = () if known.rank is None else (known.rank,)
    title = f"{known.title[0].lower()}{known.title[1:]}"
    verdict = seen.verdict(
        "known", ranks=ranks, confidence=known.confidence, known=known, title=title
    )
    return replace(verdict, evidence=(known.evidence[0], *verdict.evidence))


def _is_behind(seen: HungRanks) -> Verdict | None:
    """Judge a rank of our trainer that reports to have got less far than the others."""
    counts = {rank: row["count"] for rank, row in seen.ranks.items() if row["count"] is not None}
    least = min(counts.values(), default=0)
    late = tuple(rank for rank, count in counts.items() if count == least)
    if not counts or len(late) == len(counts):
        return None
    return seen.verdict("is_behind", ranks=late, row=seen.ranks[late[0]])


def _alone(seen: HungRanks) -> Verdict | None:
    """Blame the only rank, if there is just one."""
    if len(seen.ranks) != 1:
        return None
    (rank,) = seen.ranks
    return seen.verdict("alone", ranks=(rank,))


def _together(seen: HungRanks) -> Verdict | None:
    """Name the line of every rank, where none can be told from the others."""
    if not seen.stacks:
        return None
    at: dict[str, list[int]] = {}
    for rank in seen.stacks:
        at.setdefault(seen.line(rank), []).append(rank)
    places = "; ".join(f"rank {', '.join(map(str, some))} at {line}" for line, some in at.items())
    waits = seen.waiting()
    if len(waits) == len(seen.ranks) and len(at) == 1:
        waits_in = f"{seen.called(waits[0])} at {seen.stacks[waits[0]].where}"
        return seen.verdict("together", waits_in=waits_in, places=places)
    return seen.verdict("scattered", places=places)
