"""Which lines of a block may match which patterns: all but a few of them need not be looked at.

A log says the same things again and again with other numbers. So each line is reduced to its
letters, and only lines whose letters are new are searched for the fixed texts of the patterns,
reduced as well. To try some thousand expressions on each line would take hours for 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from diagnostics.doctor.rules import Pattern

_MOST_DULL = 200_000  # kinds of lines that are remembered for holding nothing
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_TO_NEWLINE = bytes.maketrans(b"\r", b"\n")
_NO_LETTERS = bytes(set(range(256)) - set(_LETTERS) - set(b"\r\n"))


class Sieve:
    """Finds lines for `patterns` in one log after the other."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns = {
            pattern: [frozenset(map(_letters, texts)) for texts in pattern.texts]
            for pattern in patterns
        }
        self._of_text: dict[bytes, list[Pattern]] = {}
        for pattern, (first, *_) in self._patterns.items():
            for text in first:
                self._of_text.setdefault(text, []).append(pattern)
        self._dull: set[bytes] = set()

    def candidates(self, lower: bytes) -> Iterator[tuple[int, set[Pattern]]]:
        """(where a line of `lower` begins, patterns that may match it), in order.

        A carriage return ends a line as well. `lower` is in lower case.
        """
        kinds = lower.translate(_TO_NEWLINE, _NO_LETTERS).split(b"\n")
        found = self._search(set(kinds) - self._dull)
        if not found:
            return
        lines = lower.translate(_TO_NEWLINE).split(b"\n")
        starts = accumulate((len(line) + 1 for line in lines), initial=0)
        for kind, line, start in zip(kinds, lines, starts, strict=False):
            if kind in found:
                held = {one for one in found[kind] if holds(line, one.texts)}
                if held:
                    yield start, held

    def _search(self, kinds: set[bytes]) -> dict[bytes, set[Pattern]]:
        """Those of `kinds` that hold the letters of a pattern's texts; the rest is remembered."""
        text = b"\n".join(kinds)
        found: dict[bytes, set[Pattern]] = {}
        for letters, patterns in self._of_text.items():
            position = -1
            while (position := text.find(letters, position + 1)) >= 0:
                end = text.find(b"\n", position)
                end = len(text) if end < 0 else end
                kind = text[text.rfind(b"\n", 0, position) + 1 : end]
                held = {one for one in patterns if holds(kind, self._patterns[one])}
                if held:
                    found.setdefault(kind, set()).update(held)
                position = end
        if len(self._dull) < _MOST_DULL:
            self._dull |= kinds - found.keys()
        return found


def holds(line: bytes, texts: Iterable[frozenset[bytes]]) -> bool:
    """Whether a line holds one text of each choice."""
    return all(any(text in line for text in choice) for choice in texts)


def _letters(text: bytes) -> bytes:
    return text.translate(None, _NO_LETTERS)
