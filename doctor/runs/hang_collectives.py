"""Hangs in which every rank waits in a collective, and not all in the same one."""

from __future__ import annotations

from doctor.logs.verdict import Verdict
from doctor.runs.flight import Differing, differing
from doctor.runs.hang_absent import batches
from doctor.runs.hang_seen import HungRanks

_ONE_TO_ONE = ("recv", "irecv", "send", "isend", "batch_isend_irecv", "recv_object_list")
_WITHOUT_STACK = 0.8  # the confidence where a rank shows no stack


def no_partner(seen: HungRanks) -> Verdict | None:
    """Judge a rank in send or receive whose partner does something else."""
    ranks = [rank for rank in seen.waiting() if seen.stacks[rank].calls in _ONE_TO_ONE]
    others = [rank for rank in seen.waiting() if rank not in ranks]
    if not ranks or not others:
        return None
    stack = seen.stacks[ranks[0]]
    partner = "nobody sends to it" if "recv" in stack.calls else "nobody receives"
    waiting = seen.each(others)
    return seen.verdict(
        "no_partner", ranks=tuple(ranks), stack=stack, partner=partner, waiting=waiting
    )


def mismatch(seen: HungRanks) -> Verdict | None:
    """Judge ranks whose records or stacks show that they have called different collectives."""
    difference = differing(seen.records)
    if difference is None:
        return _by_stacks(seen)
    rank, other = difference.ranks[0], difference.others[0]
    if difference.instead is not None:
        return _verdict(seen, difference.ranks, other, _with_sizes(difference), is_same_number=True)
    if rank in seen.stacks and seen.stacks[rank].waits:
        at = {
            seen.stacks[each_rank].where for each_rank in (rank, other) if each_rank in seen.stacks
        }
        if len(at) > 1:
            return _by_stacks(seen, difference.ranks)
    return seen.verdict(
        "not_entered",
        ranks=difference.ranks,
        confidence=None if rank in seen.stacks else _WITHOUT_STACK,
        called=difference.called,
        batches=batches(seen, rank, other),
    )


def _with_sizes(difference: Differing) -> str:
    assert difference.instead is not None
    if difference.instead.name != difference.called.name:
        return ""
    return f" Sizes: {difference.instead.sizes} against {difference.called.sizes}."


def _by_stacks(seen: HungRanks, late: tuple[int, ...] = ()) -> Verdict | None:
    """Judge ranks that all wait, but at different lines, or in different calls.

    It may also be one collective that is called at several lines, over a broken network, so the
    verdict is not certain.
    """
    at: dict[str, list[int]] = {}
    for rank, stack in seen.stacks.items():
        at.setdefault(stack.where, []).append(rank)
    all_wait = all(rank in seen.stacks and seen.stacks[rank].waits for rank in seen.ranks)
    if len(at) < 2 or not all_wait:  # noqa: PLR2004 - at one line they are together
        return None
    few, many = (sorted(at.values(), key=len)[number] for number in (0, -1))
    ranks = late or (tuple(few) if len(few) < len(many) else ())
    if ranks:
        other = next(rank for rank in seen.stacks if rank not in ranks)
        return _verdict(seen, ranks, other, "")
    return seen.verdict("apart", each=seen.each(seen.stacks))


def _verdict(
    seen: HungRanks, ranks: tuple[int, ...], other: int, more: str, *, is_same_number: bool = False
) -> Verdict:
    rank = ranks[0]
    others = [number for number in seen.stacks if number not in ranks]
    theirs = seen.each(others[:1]) or f"rank {other} in another"
    branch = seen.branch(rank)
    mine = f" at {seen.stacks[rank].where}{branch}" if rank in seen.stacks else ""
    uneven_text = batches(seen, rank, other) if is_same_number and not branch else ""
    never = f" Rank {', '.join(map(str, others))} never called it." if branch else ""
    return seen.verdict(
        "uneven" if uneven_text else "mismatch",
        ranks=ranks,
        called=f"{seen.called(rank)}{mine}, and {theirs}{uneven_text}",
        each=f"{seen.each(seen.stacks)}.{more}{never}",
    )
