"""Which rank the others waited for, where NCCL's watchdogs or the ranks' tracebacks tell it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnostics.doctor.search import Sighting

_WORK = re.compile(r"SeqNum=(\d+)")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d+)")


def who_lags(sightings: Sequence[Sighting]) -> str:
    """The rank whose last collective is behind those of others, or is another one, in words."""
    last: dict[int, int] = {}
    for one in sightings:
        number = _ENQUEUED.search(one.text) or _WORK.search(one.text)
        if number and one.rank is not None:
            last[one.rank] = max(int(number[1]), last.get(one.rank, 0))
    least, most = min(last.values(), default=0), max(last.values(), default=0)
    behind = sorted(rank for rank, number in last.items() if number < most)
    if behind:
        ranks = ", ".join(map(str, behind))
        return f"Rank {ranks} got no farther than collective {least}, others to {most}: look there."
    if last:
        known = ", ".join(map(str, sorted(last)))
        return (
            f"Rank {known} waited in collective {most}: look at the log of a rank that did not, or "
            "that was doing something else at that time."
        )
    at = {one.rank: one.own_code for one in sightings if one.rank is not None and one.own_code}
    if len({where[:2] for where in at.values()}) > 1:
        told = "; ".join(f"rank {rank} at {at[rank][0]}:{at[rank][1]}" for rank in sorted(at))
        return f"They waited at different lines: {told}."
    return "Look at the log of the rank that ended, or fell silent, first."
