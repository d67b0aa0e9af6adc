"""Hangs that the kernel explains: a rank that is stopped, waits in the kernel, or holds the GIL."""

from __future__ import annotations

from doctor.logs.verdict import Verdict
from doctor.runs.hang_seen import HungRanks
from rundir.units import clock_text

_DEAF_S = 3.0  # within which a rank that can run Python code has shown a sign of life


def stopped(seen: HungRanks) -> Verdict | None:
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


def in_kernel(seen: HungRanks) -> Verdict | None:
    """Judge a rank in uninterruptible sleep."""
    for rank, row in seen.ranks.items():
        if row["state"] == "D" and row["stays"]:
            place = f" in {row['waits_in']}" if row["waits_in"] else ""
            return seen.verdict("in_kernel", ranks=(rank,), place=place, row=row)
    return None


def holds_the_gil(seen: HungRanks) -> Verdict | None:
    """Judge a rank in which no Python code can run, although it is there."""
    there = [rank for rank, row in seen.ranks.items() if row["state"] not in ("", "Z")]
    deaf = [rank for rank in there if (seen.ranks[rank]["alive_s"] or 0.0) > _DEAF_S]
    if not deaf or len(deaf) == len(seen.ranks) > 1:
        return None
    silent = clock_text(seen.ranks[deaf[0]]["alive_s"])
    return seen.verdict("holds_the_gil", ranks=(deaf[0],), silent=silent)
