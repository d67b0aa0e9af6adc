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
    for one in sightings:
        number = _ENQUEUED.search(one.text) or _WORK.search(one.text)
        if number and one.rank is not None:
            last[one.rank] = max(int(number[1]), last.get(one.rank, 0))
    if not last:
        return _at_different_lines(sightings)
    least, most = min(last.values()), max(last.values())
    calls = _calls(sightings)
    behind = sorted(rank for rank, number in last.items() if number < most)
    if behind:
        told = f"got no farther than collective {least}, others to {most}: look there.{calls}"
        return Lag(f"{_ranks(behind)} {told}", _only(behind))
    told = f"{_ranks(sorted(last))} waited in collective {most}"
    if calls:
        return Lag(f"{told}.{calls}")
    absent = sorted(set(range(min(last), max(last) + 1)) - last.keys())
    if absent and len(absent) < len(last):
        return Lag(f"{told}, and {_ranks(absent).lower()} did not: look there.", _only(absent))
    return Lag(f"{told}: look at a rank that did not, or that did something else at that time.")


def _calls(sightings: Sequence[Sighting]) -> str:
    """Tell which collective each rank waited in, if they were not alike."""
    found: dict[int, str] = {}
    for one in sightings:
        if one.rank is not None and (call := _CALL.search(one.text)):
            size = f" of {call['size']} numbers" if call["size"] else ""
            found.setdefault(one.rank, f"{call['name']}{size}")
    if len(set(found.values())) < 2:  # noqa: PLR2004 - all alike
        return ""
    told = "; ".join(f"rank {rank} in {found[rank]}" for rank in sorted(found))
    return (
        f" They waited in different collectives: {told}. So one of them has left the loop before "
        "the others (uneven numbers of batches), or took another branch."
    )


def _at_different_lines(sightings: Sequence[Sighting]) -> Lag:
    """Tell where each rank waited, if not all waited at the same line."""
    at = {one.rank: one.own.code for one in sightings if one.rank is not None and one.own}
    if len(set(at.values())) > 1:
        told = "; ".join(f"rank {rank} at {at[rank]}" for rank in sorted(at))
        return Lag(f"They waited at different lines: {told}.")
    return Lag("Look at the log of the rank that ended, or fell silent, first.")


def where_each_was(sightings: Sequence[Sighting], culprit: int | None) -> tuple[str, str]:
    """Return a sentence with the user's line that each rank was at last, `culprit` first.

    And a command that shows the culprit's. Both are "" if no log names such a line.
    """
    last = {one.rank: one.own for one in sightings if one.rank is not None and one.own}
    if not last:
        return "", ""
    ordered = sorted(last, key=lambda rank: (rank != culprit, rank))
    ranks_at: dict[str, list[int]] = {}
    for rank in ordered:
        ranks_at.setdefault(last[rank].code, []).append(rank)
    told = "; ".join(
        f"{_ranks(sorted(ranks))} {'was' if len(ranks) == 1 else 'were'} at {code}"
        for code, ranks in ranks_at.items()
    )
    return f"{told}.", last[ordered[0]].show


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None
