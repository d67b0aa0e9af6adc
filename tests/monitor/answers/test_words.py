"""The difference of two texts, word by word."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from monitor.answers.words import MOST_CHANGES, word_diff


def both(pieces: Sequence[tuple[str, str]]) -> tuple[str, str]:
    before = "".join(text for change, text in pieces if change != "added")
    return before, "".join(text for change, text in pieces if change != "removed")


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("", "", []),
        ("a b", "a b", [("same", "a b")]),
        ("", "a", [("added", "a")]),
        ("a", "", [("removed", "a")]),
        (
            "the cat sat",
            "the dog sat",
            [("same", "the "), ("removed", "cat"), ("added", "dog"), ("same", " sat")],
        ),
        ("x = 1", "x = 12", [("same", "x = "), ("removed", "1"), ("added", "12")]),
        ("日本語", "日本人", [("same", "日本"), ("removed", "語"), ("added", "人")]),
        ("one two", "three four", [("removed", "one two"), ("added", "three four")]),
    ],
)
def test_a_difference_is_told_in_words(
    before: str, after: str, pieces: list[tuple[str, str]]
) -> None:
    assert word_diff(before, after) == pieces


def test_the_pieces_of_any_two_texts_are_these_texts() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        texts = ["".join(draw.choices("ab <\n.日é ", k=draw.randrange(14))) for _ in "12"]
        assert both(word_diff(*texts)) == tuple(texts)


def test_texts_with_nothing_in_common_are_not_compared_for_long() -> None:
    before = " ".join(f"a{n}" for n in range(50_000))
    after = " ".join(f"b{n}" for n in range(50_000))
    pieces = word_diff(before, after)
    assert both(pieces) == (before, after)
    assert len(pieces) == 2
    assert MOST_CHANGES < 1000
