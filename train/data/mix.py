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


def is_mixed(ingredients: Sequence[Ingredient]) -> bool:
    """Return whether there is anything to mix."""
    return len(ingredients) > 1 or ingredients[0].weight != 1


def mixed(ingredients: Sequence[Ingredient], text_end_id: int | None) -> PreparedData:
    """Combine all files into one; those that are not plain text decide where answers end."""
    if not is_mixed(ingredients):
        return ingredients[0].data
    ends = [ingredient.data.end_token_id for ingredient in ingredients]
    parts = [
        PreparedPart(
            path=ingredient.data.path,
            num_samples=ingredient.data.num_samples,
            num_drawn=ingredient.num_drawn,
        )
        for ingredient in ingredients
    ]
    return PreparedData(
        path=parts[0].path,
        num_samples=sum(part.num_drawn for part in parts),
        num_too_long=sum(ingredient.data.num_too_long for ingredient in ingredients),
        longest=max(ingredient.data.longest for ingredient in ingredients),
        end_token_id=next((end for end in ends if end != text_end_id), ends[0]),
        num_tokens=sum(map(_tokens_of, ingredients)),
        parts=parts,
        made_of={
            **ingredients[0].data.made_of,
            "files": " ".join(
                f"{ingredient.data.made_of['files']}:{ingredient.weight:g}"
                for ingredient in ingredients
            ),
        },
    )


def mixture_lines(ingredients: Sequence[Ingredient]) -> Iterator[str]:
    """Yield lines that say what an epoch takes of each file, in samples and tokens."""
    total = sum(map(_tokens_of, ingredients))
    for ingredient in ingredients:
        tokens = _tokens_of(ingredient)
        yield (
            f"data: an epoch takes {ingredient.num_drawn:,} samples of {ingredient.name} "
            f"({ingredient.weight:g} of {ingredient.data.num_samples:,}): about {tokens:,} tokens, "
            f"{tokens / max(1, total):.0%}"
        )


def _tokens_of(ingredient: Ingredient) -> int:
    return round(ingredient.data.num_tokens * ingredient.num_drawn / ingredient.data.num_samples)
