"""Mixing of several files of tokenised data, and how much of each an epoch takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rundir.prepared import PreparedData, PreparedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredient:
    """One file, and how often each of its samples comes in an epoch."""

    name: str
    weight: float
    data: PreparedData

    @property
    def num_drawn(self) -> int:
        """The number of samples in an epoch; at least one."""
        return max(1, round(self.weight * self.data.num_samples))


def is_mixed(found: Sequence[Ingredient]) -> bool:
    """Return whether there is anything to mix."""
    return len(found) > 1 or found[0].weight != 1


def mixed(found: Sequence[Ingredient], text_end_id: int | None) -> PreparedData:
    """Combine all files into one; those that are not plain text decide where answers end."""
    if not is_mixed(found):
        return found[0].data
    ends = [one.data.end_token_id for one in found]
    parts = [
        PreparedPart(path=one.data.path, num_samples=one.data.num_samples, num_drawn=one.num_drawn)
        for one in found
    ]
    return PreparedData(
        path=parts[0].path,
        num_samples=sum(part.num_drawn for part in parts),
        num_too_long=sum(one.data.num_too_long for one in found),
        longest=max(one.data.longest for one in found),
        end_token_id=next((end for end in ends if end != text_end_id), ends[0]),
        num_tokens=sum(map(_tokens_of, found)),
        parts=parts,
        made_of={
            **found[0].data.made_of,
            "files": " ".join(f"{one.data.made_of['files']}:{one.weight:g}" for one in found),
        },
    )


def mixture_lines(found: Sequence[Ingredient]) -> Iterator[str]:
    """Yield lines that say what an epoch takes of each file, in samples and tokens."""
    total = sum(map(_tokens_of, found))
    for one in found:
        tokens = _tokens_of(one)
        yield (
            f"data: an epoch takes {one.num_drawn:,} samples of {one.name} ({one.weight:g} of "
            f"{one.data.num_samples:,}): about {tokens:,} tokens, {tokens / max(1, total):.0%}"
        )


def _tokens_of(one: Ingredient) -> int:
    return round(one.data.num_tokens * one.num_drawn / one.data.num_samples)
