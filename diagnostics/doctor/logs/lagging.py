"""The rank that the others waited for, from NCCL's watchdogs or the ranks' tracebacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics.doctor.logs.sightings import Sighting

_WORK = re.compile(r"SeqNum=(\d+)")
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
    behind = sorted(rank for rank, number in last.items() if number < most)
    if behind:
        told = f"got no farther than collective {least}, others to {most}: look there."
        return Lag(f"{_ranks(behind)} {told}", _only(behind))
    told = f"{_ranks(sorted(last))} waited in collective {most}"
    absent = sorted(set(range(min(last), max(last) + 1)) - last.keys())
    if absent and len(absent) < len(last):
        return Lag(f"{told}, and {_ranks(absent).lower()} did not: look there.", _only(absent))
    return Lag(f"{told}: look at a rank that did not, or that did something else at that time.")


def _at_different_lines(sightings: Sequence[Sighting]) -> Lag:
    """Tell where each rank waited, if not all waited at the same line."""
    at = {one.rank: one.own.code for one in sightings if one.rank is not None and one.own}
    if len(set(at.values())) > 1:
        told = "; ".join(f"rank {rank} at {at[rank]}" for rank in sorted(at))
        return Lag(f"They waited at different lines: {told}.")
    return Lag("Look at the log of the rank that ended, or fell silent, first.")


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None
