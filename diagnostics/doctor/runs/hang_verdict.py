"""The verdict on a run that hung, from what its launcher recorded about the ranks (incidents/)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostics.doctor.logs.choose import suspects
from diagnostics.doctor.logs.diagnosis import search, verdict_of
from diagnostics.doctor.logs.reading import Log
from diagnostics.doctor.logs.verdict import Evidence, Verdict
from diagnostics.doctor.runs.flight import Missing, missing, read_records
from diagnostics.doctor.runs.rank_stacks import Stack, read_stack
from rundir.paths import shown
from rundir.units import clock_text

_DEAF_S = 3.0  # within which a rank that can run Python code has shown a sign of life
_CONFIDENT, _LIKELY, _PROBABLE, _UNSURE = 0.95, 0.8, 0.6, 0.4


def of_hang(folder: Path) -> Verdict | None:
    """Return the verdict on the incident in `folder`; None if it holds no record of a hang.

    The most reliable evidence comes first: what the kernel says of a rank, then whether Python code
    can run in it, then collectives, and only at the end stacks.
    """
    try:
        about = json.loads((folder / "hang.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    seen = _Seen(folder, about)
    deciders = (
        _stopped,
        _in_kernel,
        _holds_the_gil,
        _known,
        _collectives,
        _does_not_wait,
        _wait_apart,
        _is_behind,
    )
    for decide in deciders:
        if verdict := decide(seen):
            return verdict
    return _alone(seen) or seen.verdict(
        "hang",
        "makes no progress",
        "No rank can be told from the others.",
        ranks=(),
        fix=f"{seen.show_all()}; ./airlock check collectives   # do the ranks reach each other?",
        confidence=_UNSURE,
    )


class _Seen:
    """Everything that is known of each rank."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.ranks: dict[int, dict[str, Any]] = {one["rank"]: one for one in about["ranks"]}
        read = {rank: read_stack(folder / "stacks" / f"rank{rank}.txt") for rank in self.ranks}
        self.stacks: dict[int, Stack] = {rank: one for rank, one in read.items() if one}
        self.missing: Missing | None = missing(read_records(folder))

    def verdict(
        self,
        cause: str,
        title: str,
        why: str,
        *,
        ranks: tuple[int, ...],
        fix: str,
        confidence: float,
        is_proven: bool = False,
    ) -> Verdict:
        """Create a verdict; `title` says what `ranks[0]` does, or the run if `ranks` is empty."""
        still = f"No rank made progress for {clock_text(self.about['still_s'])}"
        who = [*ranks, *(rank for rank in self.stacks if rank not in ranks)][:4]
        evidence = tuple(
            Evidence(shown(one.log), one.line, one.text)
            for one in (self.stacks[rank] for rank in who if rank in self.stacks)
        )
        if not evidence or (ranks and ranks[0] not in self.stacks):
            text = f'"rank": {ranks[0] if ranks else 0},'
            evidence = (*_line_of(self.folder / "hang.json", text), *evidence)
        subject = f"Rank {ranks[0]}" if ranks else "The run"
        return Verdict(
            cause=cause,
            rank=ranks[0] if ranks else None,
            title=f"{subject} {title}",
            why=f"{still}. {why}".strip(),
            fix=fix,
            confidence=confidence,
            is_proven=is_proven,
            evidence=evidence,
        )

    def where(self, rank: int) -> str:
        """Return a clause that says at which line a rank is."""
        return f"it is at {self.stacks[rank].where}" if rank in self.stacks else "it shows no stack"

    def show(self, rank: int, question: str) -> str:
        """Return a command that shows the line at which a rank is, and what to look for there."""
        show = self.stacks[rank].show if rank in self.stacks else self.show_all()
        return f"{show}   # {question}"

    def show_all(self) -> str:
        """Return a command that shows the stacks of all ranks."""
        return f"less {shlex.quote(shown(self.folder / 'stacks'))}/*"

    def others(self, rank: int) -> str:
        """Return a sentence that says where another rank waits meanwhile, or ""."""
        waiting = next((one for other, one in self.stacks.items() if other != rank), None)
        return f" The others wait for it, at {waiting.where}." if waiting else ""


def _stopped(seen: _Seen) -> Verdict | None:
    for rank, one in seen.ranks.items():
        if one["state"] not in ("T", "t"):
            continue
        by = "was stopped (SIGSTOP)" if one["state"] == "T" else "is held by a debugger or tracer"
        return seen.verdict(
            "rank-stopped",
            by,
            f"The kernel has process {one['pid']} in state {one['state']}: it does not run at all."
            + seen.others(rank),
            ranks=(rank,),
            fix=f"kill -CONT {one['pid']}   # while it is there; and find who sends "
            "SIGSTOP: a person, a batch system that suspends jobs, a checkpointing tool",
            confidence=_CONFIDENT,
            is_proven=True,
        )
    return None


def _in_kernel(seen: _Seen) -> Verdict | None:
    for rank, one in seen.ranks.items():
        if one["state"] == "D" and one["stays"]:
            where = f" in {one['waits_in']}" if one["waits_in"] else ""
            return seen.verdict(
                "rank-in-kernel",
                f"waits in the kernel{where}, and cannot be interrupted",
                f"Process {one['pid']} is in state D: {seen.where(rank)}.{seen.others(rank)}",
                ranks=(rank,),
                fix="sudo dmesg -T | tail -50   # a disk, a network mount or a "
                "driver does not answer",
                confidence=_LIKELY,
            )
    return None


def _holds_the_gil(seen: _Seen) -> Verdict | None:
    deaf = [rank for rank, one in seen.ranks.items() if (one["alive_s"] or 0.0) > _DEAF_S]
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
        confidence=_LIKELY,
    )


def _known(seen: _Seen) -> Verdict | None:
    """Apply the doctor's rules to the call that a rank is in, as to a line of a log."""
    logs = [Log(shown(one.log), one.log, rank) for rank, one in seen.stacks.items()]
    found = search(logs)
    ordered = suspects(found)
    if not ordered or ordered[0].rule.role != "root":
        return None
    known = verdict_of(ordered, found)
    ranks = () if known.rank is None else (known.rank,)
    title = f"keeps the others waiting: {known.title[0].lower()}{known.title[1:]}"
    verdict = seen.verdict(
        known.cause, title, known.why, ranks=ranks, fix=known.fix, confidence=known.confidence
    )
    return replace(verdict, evidence=(known.evidence[0], *verdict.evidence))


def _collectives(seen: _Seen) -> Verdict | None:
    found = seen.missing
    if found is None:
        return None
    rank, others = found.ranks[0], ", ".join(map(str, found.others))
    if found.instead:
        return seen.verdict(
            "collective-mismatch",
            f"called {found.instead}, the others {found.called}",
            f"Ranks must call the same collectives in the same order. Rank {others} called "
            f"{found.called} at {found.where}.",
            ranks=found.ranks,
            fix=seen.show(
                rank,
                "look for a branch that only some ranks take: on the rank, on the data, on a loss",
            ),
            confidence=_LIKELY,
        )
    return seen.verdict(
        "rank-behind",
        f"did not enter {found.called}: {seen.where(rank)}",
        f"Rank {others} called {found.called} at {found.where}, and waits there for rank "
        f"{', '.join(map(str, found.ranks))}.",
        ranks=found.ranks,
        fix=seen.show(
            rank,
            "what does it wait for that the other ranks do "
            "not? A file, a lock, a network, more data than others have, a branch of one rank only",
        ),
        confidence=_CONFIDENT if rank in seen.stacks else _LIKELY,
    )


def _does_not_wait(seen: _Seen) -> Verdict | None:
    late = tuple(rank for rank, stack in seen.stacks.items() if not stack.waits)
    if not late or len(late) == len(seen.stacks):
        return None
    return seen.verdict(
        "rank-behind",
        f"keeps the others waiting: {seen.where(late[0])}",
        f"The others wait in a collective, and rank {', '.join(map(str, late))} is in none.",
        ranks=late,
        fix=seen.show(late[0], "what does it wait for?"),
        confidence=_LIKELY,
    )


def _wait_apart(seen: _Seen) -> Verdict | None:
    """Judge ranks that all wait, but at different lines: each in a collective others did not call.

    It may also be one collective that is called at several lines, over a broken network, so the
    verdict is not certain.
    """
    at: dict[str, list[int]] = {}
    for rank, stack in seen.stacks.items():
        at.setdefault(stack.where, []).append(rank)
    all_wait = all(rank in seen.stacks and seen.stacks[rank].waits for rank in seen.ranks)
    if len(at) < 2 or not all_wait:  # noqa: PLR2004 - at one line they are together
        return None
    few, many = (sorted(at.values(), key=len)[one] for one in (0, -1))
    ranks = tuple(few) if len(few) < len(many) else ()
    told = "; ".join(f"rank {', '.join(map(str, some))} at {where}" for where, some in at.items())
    return seen.verdict(
        "collective-mismatch",
        f"waits in another collective than the others: {seen.where(ranks[0])}"
        if ranks
        else "has ranks that wait in different collectives",
        f"All wait, {told}: ranks must call the same collectives in the same order.",
        ranks=ranks,
        fix="give every rank the same number of batches (DistributedSampler("
        "drop_last=True), or torch.distributed.algorithms.join.Join), and let no branch that only "
        "some ranks take have a collective; TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls",
        confidence=_PROBABLE,
    )


def _is_behind(seen: _Seen) -> Verdict | None:
    counts = {rank: one["count"] for rank, one in seen.ranks.items() if one["count"] is not None}
    least = min(counts.values(), default=0)
    late = tuple(rank for rank, count in counts.items() if count == least)
    if not counts or len(late) == len(counts):
        return None
    one = seen.ranks[late[0]]
    return seen.verdict(
        "rank-behind",
        f"got less far than the others, to {one['phase']} after step {one['step']}: "
        f"{seen.where(late[0])}",
        "",
        ranks=late,
        fix=seen.show_all(),
        confidence=_UNSURE,
    )


def _alone(seen: _Seen) -> Verdict | None:
    """Blame the only rank, if there is just one."""
    if len(seen.ranks) != 1:
        return None
    (rank,) = seen.ranks
    return seen.verdict(
        "hang",
        f"makes no progress: {seen.where(rank)}",
        "",
        ranks=(rank,),
        fix=seen.show(rank, "what does it wait for?"),
        confidence=_PROBABLE,
    )


def _line_of(path: Path, text: str) -> tuple[Evidence, ...]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [(number, line) for number, line in enumerate(lines, 1) if text in line][:1]
    return tuple(Evidence(shown(path), number, line.strip()) for number, line in found)
