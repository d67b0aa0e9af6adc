"""The difference of two texts, word by word, after Myers: An O(ND) difference algorithm (1986).

monitor/pages/static/words.js is the same in JavaScript; a test compares the two.
"""

from __future__ import annotations

import re
from typing import Literal

Change = Literal["same", "added", "removed"]
Piece = tuple[Change, str]

MOST_CHANGES = 300  # words added or removed; with more, all in between counts as changed
_SPACE = r" \t\n\r\f\v\u00a0\u2000-\u200a\u2028\u2029\u202f\u3000"
_SINGLE = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # written without spaces between words
_WORD = re.compile(rf"[{_SPACE}]+|[{_SINGLE}]|(?:(?![{_SINGLE}])\w)+|[^\w{_SPACE}]")
_BLANK = re.compile(rf"[{_SPACE}]+")


def word_diff(before: str, after: str) -> list[Piece]:
    """Return the pieces of both texts in order; "same" and "removed" make up `before`."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    steps: list[Piece] = [("same", word) for word in old[:start]]
    steps += _middle(old[start : len(old) - end], new[start : len(new) - end])
    steps += [("same", word) for word in old[len(old) - end :]]
    return _joined(steps)


def _middle(old: list[str], new: list[str]) -> list[Piece]:
    """Return the shortest way from `old` to `new`, word by word.

    `reach[k]` is how far into `old` so many changes lead on the diagonal k = x - y.
    """
    reach, trace = {1: 0}, []
    for changes in range(min(len(old) + len(new), MOST_CHANGES) + 1):
        trace.append(reach)
        reach = {}
        for diagonal in range(-changes, changes + 1, 2):
            x = _next(trace[-1], diagonal, changes)
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            reach[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _way_back(old, new, trace)
    return [("removed", word) for word in old] + [("added", word) for word in new]


def _is_down(reach: dict[int, int], diagonal: int, changes: int) -> bool:
    """Return whether the diagonal is best reached by a word added, not by one removed."""
    return diagonal == -changes or (
        diagonal != changes and reach[diagonal - 1] < reach[diagonal + 1]
    )


def _next(reach: dict[int, int], diagonal: int, changes: int) -> int:
    is_down = _is_down(reach, diagonal, changes)
    return reach[diagonal + 1] if is_down else reach[diagonal - 1] + 1


def _way_back(old: list[str], new: list[str], trace: list[dict[int, int]]) -> list[Piece]:
    x, y = len(old), len(new)
    pieces: list[Piece] = []
    for changes in range(len(trace) - 1, 0, -1):
        reach, diagonal = trace[changes], x - y
        is_down = _is_down(reach, diagonal, changes)
        from_x = reach[diagonal + 1 if is_down else diagonal - 1]
        from_y = from_x - (diagonal + 1 if is_down else diagonal - 1)
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            pieces.append(("same", old[x]))
        pieces.append(("added", new[from_y]) if is_down else ("removed", old[from_x]))
        x, y = from_x, from_y
    pieces += [("same", word) for word in reversed(old[:x])]
    return pieces[::-1]


def _joined(steps: list[Piece]) -> list[Piece]:
    """Return whole pieces; a space alone between two changes belongs to both of them."""
    pieces: list[Piece] = []
    removed = added = ""
    for number, (change, word) in enumerate(steps):
        if change == "removed":
            removed += word
        elif change == "added":
            added += word
        elif (removed or added) and _is_between(steps, number):
            removed, added = removed + word, added + word
        else:
            pieces += _changed(removed, added)
            removed = added = ""
            if pieces and pieces[-1][0] == "same":
                pieces[-1] = ("same", pieces[-1][1] + word)
            else:
                pieces.append(("same", word))
    return pieces + _changed(removed, added)


def _is_between(steps: list[Piece], number: int) -> bool:
    follows = steps[number + 1][0] if number + 1 < len(steps) else "same"
    return follows != "same" and _BLANK.fullmatch(steps[number][1]) is not None


def _changed(removed: str, added: str) -> list[Piece]:
    pieces: list[Piece] = [("removed", removed), ("added", added)]
    return [piece for piece in pieces if piece[1]]
