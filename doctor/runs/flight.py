"""The collectives that each rank has called last: where the ranks' records begin to differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

_SAME_SIZES = ("all_reduce", "broadcast", "barrier", "reduce", "allreduce_coalesced")
_FEWEST_BATCHES = 3  # so many equal calls in a row are a loop over batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective that a rank has called."""

    group: str
    number: int  # in its group, from 1
    name: str
    sizes: str
    place: str  # the frames that led to it, told apart by file and line; "" if not known

    @property
    def kind(self) -> tuple[str, str, str]:
        """What it has in common with the call of the same line in another step, or rank."""
        return self.group, self.name, self.place or (self.sizes if self.is_sized else "")

    @property
    def is_sized(self) -> bool:
        """True if every rank must bring the same sizes."""
        return self.name in _SAME_SIZES

    @property
    def told(self) -> str:
        """The call with its number and sizes, as `all_reduce #4 of [[8]]`."""
        return f"{self.name} #{self.number}" + (f" of {self.sizes}" if self.sizes else "")


@dataclass(frozen=True, slots=True)
class Record:
    """The last collectives of one rank, the oldest first; without send and receive."""

    entries: tuple[Entry, ...]

    @property
    def last(self) -> Entry | None:
        """The last one of all groups."""
        return self.entries[-1] if self.entries else None

    def last_of(self) -> dict[str, Entry]:
        """Return the last one of each group."""
        return {entry.group: entry for entry in self.entries}

    def in_a_row(self, kind: tuple[str, str, str]) -> int:
        """Return how often `kind` was called at the end; another call after that is allowed."""
        kinds = [entry.kind for entry in reversed(self.entries)]
        begin = 0 if kinds and kinds[0] == kind else 1
        return len(list(takewhile(lambda called: called == kind, kinds[begin:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """A collective that `others` have called, and `ranks` have not or in another way."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    called: Entry  # by the others
    instead: Entry | None  # by `ranks`, under the same number; None if nothing


def read_records(folder: Path) -> dict[int, Record]:
    """Read the entries of the ranks that recorded any, from `flight/rankN.json` below `folder`."""
    records = {}
    for path in sorted((folder / "flight").glob("rank*.json")):
        try:
            entries = json.loads(path.read_text("utf-8"))
            rank = int(path.stem.removeprefix("rank"))
            records[rank] = Record(tuple(_entry(entry) for entry in entries))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return records


def differing(records: Mapping[int, Record]) -> Differing | None:
    """Find where the ranks' last collectives differ; None if they do not, or nothing is known."""
    last = {rank: record.last_of() for rank, record in records.items()}
    groups = sorted({group for entries in last.values() for group in entries})
    for find in (_behind, _different):
        for group in groups:
            if difference := find(group, last, records):
                return difference
    return None


def uneven(records: Mapping[int, Record], rank: int, other: int) -> tuple[int, int] | None:
    """Return how many batches `other` and `rank` had, if one of them had fewer in a loop."""
    if rank not in records or other not in records or (last := records[other].last) is None:
        return None
    kinds = [
        entry.kind for record in (records[rank], records[other]) for entry in record.entries[-2:]
    ]
    for kind in dict.fromkeys([last.kind, *kinds]):
        counts = records[other].in_a_row(kind), records[rank].in_a_row(kind)
        if min(counts) >= _FEWEST_BATCHES and counts[0] != counts[1]:
            return counts
    return None


def _behind(
    group: str, last: Mapping[int, dict[str, Entry]], records: Mapping[int, Record]
) -> Differing | None:
    numbers = {
        rank: entries_by_group[group].number if group in entries_by_group else 0
        for rank, entries_by_group in last.items()
    }
    least = min(numbers.values())
    ranks = tuple(rank for rank, number in numbers.items() if number == least)
    others = tuple(rank for rank in numbers if rank not in ranks)
    if not others or not any(group in last[rank] for rank in ranks):  # it may not be a member
        return None
    of_group = (entry for entry in records[others[0]].entries if entry.group == group)
    called = next((entry for entry in of_group if entry.number > least), last[others[0]][group])
    return Differing(ranks=ranks, others=others, called=called, instead=None)


def _different(
    group: str, last: Mapping[int, dict[str, Entry]], records: Mapping[int, Record]
) -> Differing | None:
    """Find ranks that called another collective under the same number.

    The minority is blamed; between as many, those whose records show that call in that place for
    the first time.
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    entries = {rank: by_group[group] for rank, by_group in last.items() if group in by_group}
    for rank, entry in entries.items():
        kinds.setdefault((entry.name, entry.sizes if entry.is_sized else ""), []).append(rank)
    if len(kinds) < 2:  # noqa: PLR2004 - one kind is no difference
        return None
    new = _ranks_that_do_something_new(records)
    ordered = sorted(kinds.values(), key=lambda some: (-len(some), set(some) <= new, some))
    ranks = ordered[-1]
    others = [rank for rank in entries if rank not in ranks]
    return Differing(
        ranks=tuple(ranks),
        others=tuple(others),
        called=entries[others[0]],
        instead=entries[ranks[0]],
    )


def _ranks_that_do_something_new(records: Mapping[int, Record]) -> set[int]:
    """Return the ranks whose last call has followed on the one before it for the first time."""
    steps = {
        rank: list(pairwise(entry.kind for entry in record.entries))
        for rank, record in records.items()
    }
    usual = {step for some in steps.values() for step in some[:-1]}
    return {rank for rank, some in steps.items() if some and some[-1] not in usual}


def _entry(row: Mapping[str, object]) -> Entry:
    frames = row["frames"]
    assert isinstance(frames, list)
    return Entry(
        group=str(row["group"]),
        number=int(str(row["number"])),
        name=str(row["name"]),
        sizes=str(row["sizes"] or ""),
        place=";".join(f"{file}:{line}" for file, line, _ in frames),
    )
