"""The ranks that missed a collective, from the last ones that each rank has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.doctor.logs.tracebacks import is_own

Entry = dict[str, Any]  # as train/rank/watchdog.py writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A collective that `others` called and `ranks` did not, or called a different one instead."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    called: str  # for example, all_reduce #4
    where: str  # the others called it: file:line in function
    instead: str = ""  # what `ranks` called under the same number; "" if nothing


def read_records(folder: Path) -> dict[int, list[Entry]]:
    """Read the entries of the ranks that recorded any, from `flight/rankN.json` below `folder`."""
    found = {}
    for path in sorted((folder / "flight").glob("rank*.json")):
        try:
            found[int(path.stem.removeprefix("rank"))] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return found


def missing(records: Mapping[int, list[Entry]]) -> Missing | None:
    """Find where the ranks' last collectives differ; None if they do not, or nothing is known."""
    last = {rank: _last_of_groups(entries) for rank, entries in records.items()}
    groups = sorted({group for one in last.values() for group in one})
    behind = (_behind(group, last, records) for group in groups)
    if (found := next((one for one in behind if one), None)) is not None:
        return found
    differing = (_differing(group, last) for group in groups)
    return next((one for one in differing if one), None)


def _last_of_groups(entries: list[Entry]) -> dict[str, Entry]:
    return {str(entry["group"]): entry for entry in entries}


def _behind(
    group: str, last: Mapping[int, dict[str, Entry]], records: Mapping[int, list[Entry]]
) -> Missing | None:
    numbers = {rank: one[group]["number"] for rank, one in last.items() if group in one}
    least = min(numbers.values())
    ranks = tuple(rank for rank, number in numbers.items() if number == least)
    others = tuple(rank for rank in numbers if rank not in ranks)
    if not others:
        return None
    entry = next(
        (one for one in records[others[0]] if one["group"] == group and one["number"] > least),
        last[others[0]][group],
    )
    return Missing(ranks=ranks, others=others, called=_named(entry), where=_where(entry))


def _differing(group: str, last: Mapping[int, dict[str, Entry]]) -> Missing | None:
    """Find ranks that called another collective under the same number; the minority is blamed."""
    kinds: dict[str, list[int]] = {}
    entries = {rank: one[group] for rank, one in last.items() if group in one}
    for rank, entry in entries.items():
        sizes = entry["sizes"] if entry["name"] in _SAME_SIZES else None
        kinds.setdefault(json.dumps([entry["name"], sizes]), []).append(rank)
    if len(kinds) < 2:  # noqa: PLR2004 - one kind is no difference
        return None
    *_, ranks = sorted(kinds.values(), key=lambda some: (-len(some), some))
    others = [rank for rank in entries if rank not in ranks]
    theirs, ours = entries[others[0]], entries[ranks[0]]
    return Missing(
        ranks=tuple(ranks),
        others=tuple(others),
        called=_named(theirs, with_sizes=True),
        where=_where(theirs),
        instead=f"{_named(ours, with_sizes=True)} at {_where(ours)}",
    )


_SAME_SIZES = ("all_reduce", "broadcast", "barrier", "reduce", "allreduce_coalesced")


def _named(entry: Entry, *, with_sizes: bool = False) -> str:
    sizes = f" of {entry['sizes']}" if with_sizes and entry["sizes"] else ""
    return f"{entry['name']} #{entry['number']}{sizes}"


def _where(entry: Entry) -> str:
    """Return the innermost call in the user's own code that led to the entry."""
    frames = entry["frames"] or [["?", 0, "?"]]
    file, line, name = next((one for one in frames if is_own(one[0])), frames[0])
    return f"{file}:{line} in {name}"
