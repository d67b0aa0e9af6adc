"""Hangs in which somebody is not there: a rank that has left, or has not joined the others yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from doctor.logs.verdict import Verdict
from doctor.runs.flight import uneven
from doctor.runs.hang_seen import HungRanks, ranks_text
from rundir.paths import shown

_JOINING = ("init_process_group", "_init_process_group", "init_device_mesh")
_MEETS = re.compile(r"torch/distributed/(rendezvous|distributed_c10d|elastic/utils/store)\.py")
_JOINS_THREADS = ("join_threads", "_shutdown")


def has_left(seen: HungRanks) -> Verdict | None:
    """Judge a run in which a rank has ended without an error while others wait for it."""
    gone = [rank for rank, row in seen.ranks.items() if row["state"] in ("", "Z")]
    gone = [rank for rank in gone if rank not in seen.stacks]  # else it has raised, with that stack
    left = [rank for rank in seen.ranks if _left(seen, rank)]
    waiting = [rank for rank in seen.waiting() if rank not in left]
    ranks = tuple(dict.fromkeys([*left, *gone]))
    if not ranks or not waiting or len(ranks) == len(seen.ranks):
        return None
    if any((_left(seen, rank) or {}).get("how") == "raised" for rank in ranks):
        return None  # what it raised says more
    rank = ranks[0]
    stays = "" if rank in gone else _stays(seen, rank)
    return seen.verdict(
        "left",
        ranks=ranks,
        left=f"{_left_at(seen, rank)}{stays}",
        waiting=f"{seen.each(waiting)}{batches(seen, rank, waiting[0])}",
        show=seen.show(waiting[0]),
    )


def _stays(seen: HungRanks, rank: int) -> str:
    """Return a clause that says why a rank that has ended is still there."""
    stack = seen.stacks.get(rank)
    if stack is None:
        return ", though its process is still there"
    if any(call.where in _JOINS_THREADS for call in (stack.own, *stack.above)):
        where = f" at {stack.others[0].where}" if stack.others else ""
        return f", while a thread{where} keeps its process from ending"
    return f", though its process is still there, at {stack.where}"


def batches(seen: HungRanks, rank: int, other: int) -> str:
    """Return how many batches two ranks had, in brackets, if that is why they have come apart."""
    if counts := uneven(seen.records, rank, other):
        return f" (uneven batches: rank {other} {counts[0]} against {counts[1]} of rank {rank})"
    return ""


def not_joined(seen: HungRanks) -> Verdict | None:
    """Judge a run in which ranks wait in init_process_group for others."""
    joining = [rank for rank in seen.stacks if _is_joining(seen, rank)]
    if not joining:
        return None
    late = tuple(rank for rank in seen.ranks if rank not in joining)
    stack = seen.stacks[joining[0]]
    meet, waiting = f"{stack.where}{_address(seen, joining)}", ranks_text(joining)
    if late:
        waiting = waiting.capitalize()
        return seen.verdict("not_joined", ranks=late, stack=stack, meet=meet, waiting=waiting)
    return seen.verdict(
        "ranks_missing",
        stack=stack,
        meet=meet,
        waiting=waiting,
        num=len(seen.ranks),
        show=stack.show,
    )


def _left(seen: HungRanks, rank: int) -> dict[str, Any] | None:
    left: dict[str, Any] | None = seen.ranks[rank].get("left")
    return left


def _left_at(seen: HungRanks, rank: int) -> str:
    left = _left(seen, rank)
    if left is None:
        return ""
    how = " by sys.exit" if left["how"] == "exited" else ""
    return f"{how} at {shown(Path(left['file']))}:{left['line']}"


def _is_joining(seen: HungRanks, rank: int) -> bool:
    stack = seen.stacks[rank]
    names = {call.where for call in stack.above}
    return stack.waits and bool(names & set(_JOINING)) and bool(_MEETS.search(stack.above[0].file))


def _address(seen: HungRanks, ranks: list[int]) -> str:
    """Return where the ranks await each other, and how many each expects, if they have told it."""
    addresses = {seen.ranks[rank].get("store") for rank in ranks} - {None, ""}
    return f", to meet at {', '.join(sorted(map(str, addresses)))}" if addresses else ""
