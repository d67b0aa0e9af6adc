"""Hangs that the kernel explains: a rank that is stopped, waits in the kernel, or holds the GIL."""

from __future__ import annotations

from doctor.logs.verdict import Verdict
from doctor.runs.hang_seen import CONFIDENT, LIKELY, HungRanks
from rundir.units import clock_text

_DEAF_S = 3.0  # within which a rank that can run Python code has shown a sign of life


def stopped(seen: HungRanks) -> Verdict | None:
    """Judge a rank that a signal has stopped, or a debugger."""
    for rank, row in seen.ranks.items():
        if row["state"] not in ("T", "t"):
            continue
        by = "was stopped (SIGSTOP)" if row["state"] == "T" else "is held by a debugger or tracer"
        at = row.get("at") or {}
        where = f", at {at['file']}:{at['line']}" if at.get("file") else ""
        return seen.verdict(
            "rank-stopped",
            f"{by}{where}",
            f"The kernel has process {row['pid']} in state {row['state']}: it does not run at all."
            + seen.others(rank),
            ranks=(rank,),
            fix=f"kill -CONT {row['pid']}   # while it is there; and find who sends "
            "SIGSTOP: a person, a batch system that suspends jobs, a checkpointing tool",
            confidence=CONFIDENT,
            is_proven=True,
        )
    return None


def in_kernel(seen: HungRanks) -> Verdict | None:
    """Judge a rank in uninterruptible sleep."""
    for rank, row in seen.ranks.items():
        if row["state"] == "D" and row["stays"]:
            where = f" in {row['waits_in']}" if row["waits_in"] else ""
            return seen.verdict(
                "rank-in-kernel",
                f"waits in the kernel{where}, and cannot be interrupted",
                f"Process {row['pid']} is in state D: {seen.where(rank)}.{seen.others(rank)}",
                ranks=(rank,),
                fix="sudo dmesg -T | tail -50   # a disk, a network mount or a "
                "driver does not answer",
                confidence=LIKELY,
            )
    return None


def holds_the_gil(seen: HungRanks) -> Verdict | None:
    """Judge a rank in which no Python code can run, although it is there."""
    there = [rank for rank, row in seen.ranks.items() if row["state"] not in ("", "Z")]
    deaf = [rank for rank in there if (seen.ranks[rank]["alive_s"] or 0.0) > _DEAF_S]
    if not deaf or len(deaf) == len(seen.ranks) > 1:
        return None
    rank = deaf[0]
    return seen.verdict(
        "gil-held",
        f"holds the GIL in C code: {seen.where(rank)}",
        f"No other thread of it has run for {clock_text(seen.ranks[rank]['alive_s'])}: native code "
        f"called there does not return, and does not release the GIL.{seen.others(rank)}",
        ranks=(rank,),
        fix=seen.show(
            rank,
            "a native extension called there blocks, or deadlocks with a thread that needs the GIL",
        ),
        confidence=LIKELY,
    )
