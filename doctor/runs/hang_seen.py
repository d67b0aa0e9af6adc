"""Everything that is known of each rank of a hung run, and the verdict that is made of it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.logs.verdict import Evidence, Verdict, first_line_with, written_verdict
from doctor.runs.flight import Record, read_records
from doctor.runs.rank_stacks import Stack, read_stack, stack_by_watchdog
from rundir.files.reading import json_object
from rundir.paths import shown
from rundir.pulse import NCCL
from rundir.units import clock_text

_MOST_EVIDENCE = 4
_BUSY_SHARE = 0.5  # of a core, for one that computes
_OF_SOME_RANKS = re.compile(r"rank|is_(local_)?main|is_master|is_(world_process_)?zero", re.I)


class HungRanks:
    """What the incident in `folder` holds; `about` is its hang.json."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.ranks: dict[int, dict[str, Any]] = {row["rank"]: row for row in about["ranks"]}
        read = {rank: read_stack(folder / "stacks" / f"rank{rank}.txt") for rank in self.ranks}
        stacks = {rank: stack or self._by_watchdog(rank) for rank, stack in read.items()}
        self.stacks: dict[int, Stack] = {
            rank: replace(stack, waits_in_driver=_waits_for_nccl(self.ranks[rank]))
            for rank, stack in stacks.items()
            if stack
        }
        self.records: dict[int, Record] = read_records(folder)

    def _by_watchdog(self, rank: int) -> Stack | None:
        """Return where a rank is that had no time to write its stacks, on a busy machine."""
        path = self.folder / "hang.json"
        lines = first_line_with(path, f'"rank": {rank},')
        return stack_by_watchdog(path, lines[0].line if lines else 1, self.ranks[rank])

    def verdict(
        self,
        key: str,
        *,
        ranks: tuple[int, ...] = (),
        first: Stack | None = None,
        confidence: float | None = None,
        **words: object,
    ) -> Verdict:
        """Create a verdict of verdicts.toml about `ranks[0]`, or the run if `ranks` is empty.

        Its texts have `words` in them, and what is known of that rank: `where` it is, its `line`,
        what the `others` do, a command to `show` the line. `first` is the stack that proves it,
        where that is not the one of `ranks[0]`.
        """
        known: dict[str, object] = {"show_all": self.show_all()}
        for rank in ranks[:1]:
            known |= {"where": self.where(rank), "line": self.line(rank)}
            known |= {"others": self.others(rank), "show": self.show(rank)}
        verdict = written_verdict(f"hang.{key}", known | words, confidence=confidence)
        still = f"No rank made progress for {clock_text(self.about['still_s'])}"
        subject = f"Rank {ranks[0]}" if ranks else "The run"
        return replace(
            verdict,
            rank=ranks[0] if ranks else None,
            title=f"{subject} {verdict.title}",
            why=f"{still}. {verdict.why}".strip(),
            evidence=self._evidence(ranks, first),
        )

    def _evidence(self, ranks: tuple[int, ...], first: Stack | None) -> tuple[Evidence, ...]:
        who = [*ranks, *(rank for rank in self.stacks if rank not in ranks)]
        stacks = [self.stacks[rank] for rank in who if rank in self.stacks]
        evidence = tuple(
            Evidence(shown(stack.log), stack.line, stack.text)
            for stack in [*([first] if first else []), *stacks][:_MOST_EVIDENCE]
        )
        if not evidence or (ranks and ranks[0] not in self.stacks):
            text = f'"rank": {ranks[0] if ranks else 0},'
            evidence = (*first_line_with(self.folder / "hang.json", text), *evidence)
        return evidence

    def where(self, rank: int) -> str:
        """Return a clause that says at which line a rank is."""
        return f"it is at {self.stacks[rank].where}" if rank in self.stacks else "it shows no stack"

    def line(self, rank: int) -> str:
        """Return the line at which a rank is, with its code: file:line in function (`code`)."""
        if rank not in self.stacks:
            return "a line that it does not show"
        stack = self.stacks[rank]
        return f"{stack.where} (`{stack.code}`)" if stack.code else stack.where

    def called(self, rank: int) -> str:
        """Return the collective that a rank is in: its name, and its number where that is known."""
        stack = self.stacks.get(rank)
        last = self.records[rank].last if rank in self.records else None
        name = stack.calls if stack is not None and stack.is_collective else ""
        if last is None:
            return name or (stack.calls if stack else "") or "a collective"
        if name and last.name.replace("_", "") not in name.replace("_", ""):
            return name  # in no record yet, as new_group
        group = "" if last.group.startswith("0:") else f" of group {last.group.partition(':')[0]}"
        return f"{name or last.name} #{last.number}{group}"

    def branch(self, rank: int) -> str:
        """Return a clause that says in which branch of some ranks the line of a rank is, or ""."""
        stack = self.stacks.get(rank)
        branch = _branch_of_some_ranks(stack.own.file, stack.own.line) if stack else ""
        return f", in `{branch}`" if branch else ""

    def show(self, rank: int) -> str:
        """Return a command that shows the line at which a rank is."""
        return self.stacks[rank].show if rank in self.stacks else self.show_all()

    def show_all(self) -> str:
        """Return a command that shows the stacks of all ranks."""
        return f"less {shlex.quote(shown(self.folder / 'stacks'))}/*"

    def waiting(self) -> list[int]:
        """Return the ranks that wait for others, as far as their stacks tell."""
        return [rank for rank, stack in self.stacks.items() if stack.waits]

    def others(self, rank: int) -> str:
        """Return a sentence that says where the other ranks wait meanwhile, or ""."""
        waiting = self.each(other for other in self.waiting() if other != rank)
        return f" Meanwhile {waiting}." if waiting else ""

    def each(self, ranks: Iterable[int]) -> str:
        """Return clauses that say which ranks wait in which call at which line."""
        at: dict[str, list[int]] = {}
        for rank in ranks:
            at.setdefault(f"{self.called(rank)} at {self.stacks[rank].where}", []).append(rank)
        return "; ".join(f"{ranks_text(some)} in {what}" for what, some in at.items())

    def is_busy(self, rank: int) -> bool:
        """Return whether a rank computes."""
        return float(self.ranks[rank].get("cpu_share") or 0.0) > _BUSY_SHARE

    def children(self, rank: int) -> list[tuple[dict[str, Any], Stack | None]]:
        """Return the processes that a rank has started, each with its stack if it showed one."""
        folder = self.folder / "stacks"
        rows = self.ranks[rank].get("children") or []
        return [(row, read_stack(folder / f"rank{rank}-child{row['pid']}.txt")) for row in rows]


def _waits_for_nccl(row: Mapping[str, Any]) -> bool:
    """Return whether a rank's watchdog has seen it wait, with a collective of NCCL's not completed.

    A rank in `.item()` or `.tolist()` spins in the driver of its GPU, which no stack shows.
    """
    groups = row.get("groups") or {}
    is_behind = any(
        completed < enqueued
        for name, (enqueued, completed) in groups.items()
        if name.startswith(NCCL)
    )
    return is_behind and row.get("waits_s") is not None


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return what the incident in `folder` says of each rank; [] if it could not be written."""
    rows: list[dict[str, Any]] = json_object(folder / "hang.json").get("ranks", [])
    return rows


def places(folder: Path) -> str:
    """Return at which line each rank is, and for how long, as far as its watchdog has seen."""
    seen = HungRanks(folder, {"ranks": rows_of(folder)})
    lines = []
    for rank, row in seen.ranks.items():
        still_s = row.get("still_s")
        since = "" if still_s is None else f", for {clock_text(still_s)}"
        does = "computes" if seen.is_busy(rank) else "waits" if rank in seen.waiting() else "is"
        lines.append(f"rank {rank} {does} at {seen.line(rank)}{since}")
    return "; ".join(lines)


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ranks that wait as `rank 3 waits`, or `ranks 0, 2 wait`."""
    numbers = list(ranks)
    listed = ", ".join(map(str, numbers))
    return f"rank {listed} waits" if len(numbers) == 1 else f"ranks {listed} wait"


def _branch_of_some_ranks(file: str, line: int) -> str:
    """Return the innermost condition on the rank around a line, as `if rank == 0`; "" if none."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    branch = ""
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.If) and _OF_SOME_RANKS.search(test := ast.unparse(node.test)):
            if _has_line(node.body, line):
                branch = f"if {test}"
            elif _has_line(node.orelse, line):
                branch = f"the else of if {test}"
    return branch


def _has_line(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)
