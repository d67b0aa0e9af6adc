"""A filter that finds the few lines of a block that may match a pattern.

A log repeats the same messages with other numbers. So each line is reduced to its letters, and only
lines whose letters are new are searched for the literals of the patterns, reduced likewise. Trying
some thousand expressions on each line would take hours for 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from doctor.logs.literals import LETTERS
from doctor.logs.rules import Pattern

_MOST_DULL = 200_000  # kinds of lines that are remembered for containing nothing
_TO_NEWLINE = bytes.maketrans(b"\r", b"\n")
_TO_WORDS = bytes(byte if byte in LETTERS else 32 for byte in range(256))
_MANY = 1 << 18  # bytes of new kinds of lines above which their words are checked first
_NO_LETTERS = bytes(set(range(256)) - set(LETTERS) - set(b"\r\n"))


class Prefilter:
    """Finds candidate lines for `patterns` in one log after another."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns = {
            pattern: [frozenset(map(_letters, texts)) for texts in pattern.texts]
            for pattern in patterns
        }
        self._of_text: dict[bytes, list[Pattern]] = {}
        self._words: dict[bytes, set[tuple[bytes, ...]]] = {}
        for pattern in self._patterns:
            for text in pattern.texts[0]:
                self._of_text.setdefault(_letters(text), []).append(pattern)
                words = tuple(text.translate(_TO_WORDS).split())
                self._words.setdefault(_letters(text), set()).add(words)
        self._dull: set[bytes] = set()

    def candidates(self, lower: bytes) -> Iterator[tuple[int, set[Pattern]]]:
        """Yield (start of a line of `lower`, patterns that may match it), in order.

        A carriage return also ends a line. `lower` is in lower case.
        """
        kinds = lower.translate(_TO_NEWLINE, _NO_LETTERS).split(b"\n")
        patterns_by_kind = self._search(set(kinds) - self._dull, lower)
        if not patterns_by_kind:
            return
        lines = lower.translate(_TO_NEWLINE).split(b"\n")
        starts = accumulate((len(line) + 1 for line in lines), initial=0)
        for kind, line, start in zip(kinds, lines, starts, strict=False):
            if kind in patterns_by_kind:
                held = {pattern for pattern in patterns_by_kind[kind] if holds(line, pattern.texts)}
                if held:
                    yield start, held

    def _search(self, kinds: set[bytes], lower: bytes) -> dict[bytes, set[Pattern]]:
        """Return those of `kinds` that contain a literal's letters; remember the others."""
        text = b"\n".join(kinds)
        patterns_by_kind: dict[bytes, set[Pattern]] = {}
        for letters in self._of_text if len(text) < _MANY else self._possible(lower):
            position = -1
            while (position := text.find(letters, position + 1)) >= 0:
                end = text.find(b"\n", position)
                end = len(text) if end < 0 else end
                kind = text[text.rfind(b"\n", 0, position) + 1 : end]
                held = {
                    pattern
                    for pattern in self._of_text[letters]
                    if holds(kind, self._patterns[pattern])
                }
                if held:
                    patterns_by_kind.setdefault(kind, set()).update(held)
                position = end
        if len(self._dull) < _MOST_DULL:
            self._dull |= kinds - patterns_by_kind.keys()
        return patterns_by_kind

    def _possible(self, lower: bytes) -> list[bytes]:
        """Return the letters of the literals whose words all occur in `lower`: few do in prose."""
        there = b" ".join(set(lower.translate(_TO_WORDS).split()))
        known: dict[bytes, bool] = {}
        possible = []
        for letters, texts in self._words.items():
            for word in {word for words in texts for word in words} - known.keys():
                known[word] = word in there
            if any(all(known[word] for word in words) for words in texts):
                possible.append(letters)
        return possible


def holds(line: bytes, texts: Iterable[frozenset[bytes]]) -> bool:
    """Return whether a line contains one text of each choice."""
    return all(any(text in line for text in choice) for choice in texts)


def _letters(text: bytes) -> bytes:
    return text.translate(None, _NO_LETTERS)
