"""The rank that the others waited for, from NCCL's watchdogs or the ranks' tracebacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from doctor.logs.sightings import Sighting

_WORK = re.compile(r"SeqNum=(\d+)")
_CALL = re.compile(r"SeqNum=\d+, OpType=(?P<name>\w+)(?:, NumelIn=(?P<size>\d+))?")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d+)")


@dataclass(frozen=True, slots=True)
class Lag:
    """A description of the rank or ranks that the others waited for, and the rank if it is one."""

    told: str
    rank: int | None = None


def who_lags(sightings: Sequence[Sighting]) -> Lag:
    """Find the rank whose last collective is behind the others', or that did not enter it."""
    last: dict[int, int] = {}
    for sighting in sightings:
        number = _ENQUEUED.search(sighting.text) or _WORK.search(sighting.text)
        if number and sighting.rank is not None:
            last[sighting.rank] = max(int(number[1]), last.get(sighting.rank, 0))
    if not last:
        return _at_different_lines(sightings)
    least, most = min(last.values()), max(last.values())
    calls = _calls(sightings)
    behind = sorted(rank for rank, number in last.items() if number < most)
    if behind:
        reached = f"got no farther than collective {least}, others to {most}: look there.{calls}"
        return Lag(f"{_ranks(behind)} {reached}", _only(behind))
    reached = f"{_ranks(sorted(last))} waited in collective {most}"
    if calls:
        return Lag(f"{reached}.{calls}")
    absent = sorted(set(range(min(last), max(last) + 1)) - last.keys())
    if absent and len(absent) < len(last):
        return Lag(f"{reached}, and {_ranks(absent).lower()} did not: look there.", _only(absent))
    return Lag(f"{reached}: look at a rank that did not, or that did something else at that time.")


def _calls(sightings: Sequence[Sighting]) -> str:
    """Tell which collective each rank waited in, if they were not alike."""
    calls: dict[int, str] = {}
    for sighting in sightings:
        if sighting.rank is not None and (call := _CALL.search(sighting.text)):
            size = f" of {call['size']} numbers" if call["size"] else ""
            calls.setdefault(sighting.rank, f"{call['name']}{size}")
    if len(set(calls.values())) < 2:  # noqa: PLR2004 - all alike
        return ""
    where = "; ".join(f"rank {rank} in {calls[rank]}" for rank in sorted(calls))
    return (
        f" They waited in different collectives: {where}. So one of them has left the loop before "
        "the others (uneven numbers of batches), or took another branch."
    )


def _at_different_lines(sightings: Sequence[Sighting]) -> Lag:
    """Tell where each rank waited, if not all waited at the same line."""
    at = {
        sighting.rank: sighting.own.code
        for sighting in sightings
        if sighting.rank is not None and sighting.own
    }
    if len(set(at.values())) > 1:
        places = "; ".join(f"rank {rank} at {at[rank]}" for rank in sorted(at))
        return Lag(f"They waited at different lines: {places}.")
    return Lag("Look at the log of the rank that ended, or fell silent, first.")


def where_each_was(sightings: Sequence[Sighting], culprit: int | None) -> tuple[str, str]:
    """Return a sentence with the user's line that each rank was at last, `culprit` first.

    And a command that shows the culprit's. Both are "" if no log names such a line.
    """
    last = {
        sighting.rank: sighting.own
        for sighting in sightings
        if sighting.rank is not None and sighting.own
    }
    if not last:
        return "", ""
    ordered = sorted(last, key=lambda rank: (rank != culprit, rank))
    ranks_at: dict[str, list[int]] = {}
    for rank in ordered:
        ranks_at.setdefault(last[rank].code, []).append(rank)
    places = "; ".join(
        f"{_ranks(sorted(ranks))} {'was' if len(ranks) == 1 else 'were'} at {code}"
        for code, ranks in ranks_at.items()
    )
    return f"{places}.", last[ordered[0]].show


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None
